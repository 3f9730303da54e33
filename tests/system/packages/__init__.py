# SPDX-License-Identifier: Apache-2.0
"""The packages that ./dev package builds: what is in them, and how they are installed."""
