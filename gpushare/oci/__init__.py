# SPDX-License-Identifier: Apache-2.0
"""Bundles, specs and root filesystems of containers.

Imports the standard library and gpushare.quota only.
"""
