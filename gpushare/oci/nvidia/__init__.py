# SPDX-License-Identifier: Apache-2.0
"""A GPU that an engine put into a spec before us: its hooks, nodes, mounts and variables."""

from gpushare.oci.nvidia.request import Request, find, is_placed

__all__ = ["Request", "find", "is_placed"]
