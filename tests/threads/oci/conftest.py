# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.unit.oci.conftest import root, rootfs

__all__ = ["root", "rootfs"]
