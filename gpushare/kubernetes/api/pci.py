# SPDX-License-Identifier: Apache-2.0
"""Where each card is on the PCI bus, by the files of the driver and the kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_INFORMATION: Final = "proc/driver/nvidia/gpus/*/information"
_UUID: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^Bus Location:\s*([0-9a-fA-F:.]+)\s*$", re.MULTILINE)
_ROOT: Final = re.compile(r"/sys/devices/(pci[0-9a-f]{4}:[0-9a-f]{2})/")


def pcie_roots(root: Path = Path("/")) -> dict[str, str]:
    """Return the PCIe root (`pci0000:5d`) of each card by UUID; unknown ones are missing.

    Source: NVIDIA driver README, "/proc interface"; Kubernetes, the attribute
    `resource.kubernetes.io/pcieRoot`.
    """
    found = {}
    for file in root.glob(_INFORMATION):
        try:
            text = file.read_text("ascii", "replace")
        except OSError:
            continue
        uuid, address = _UUID.search(text), _ADDRESS.search(text)
        if uuid is None or address is None:
            continue
        device = root / "sys/bus/pci/devices" / address[1].lower()
        place = _ROOT.search("/" + str(device.resolve().relative_to(root.resolve())))
        if place is not None:
            found[uuid[1]] = place[1]
    return found
