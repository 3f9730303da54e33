# SPDX-License-Identifier: Apache-2.0
"""What `./dev check` holds the sources to; steps.py lists it."""
