# SPDX-License-Identifier: Apache-2.0
"""The NUMA node of a PCI device (Linux, Documentation/ABI/testing/sysfs-bus-pci, numa_node)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NO_NODE: Final = -1


def node_of(address: str, sys: Path = Path("/sys")) -> int:
    """Return the node of a PCI address, `0000:18:00.0`; NO_NODE if the kernel has none."""
    try:
        return int((sys / "bus/pci/devices" / address / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return NO_NODE
