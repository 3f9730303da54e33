# SPDX-License-Identifier: Apache-2.0
"""A private gpushare with private engines: what the demo shows and the system tests run on.

Everything lives under one folder in /var/tmp (short, for socket paths; executable, unlike /run) and
in cgroups of one name, and is gone when the stack is closed. The machine's own docker, containerd
and gpushare are neither asked nor touched.
"""

from .stack import Stack

__all__ = ["Stack"]
