# SPDX-License-Identifier: Apache-2.0
"""Bundles, specs and root filesystems of containers. Standard library and gpushare.quota's types."""
