# SPDX-License-Identifier: Apache-2.0
"""The CDI spec by which an engine or gpushared gives simulated cards to containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gpushare.oci.platform import this_platform

CDI_KIND: Final = "nvidia.com/gpu"
DEVICE_IN_CONTAINER: Final = "/dev/gpushare-sim"
_NVIDIA_MAJOR: Final = 195  # Linux, Documentation/admin-guide/devices.txt
_NVIDIACTL_MINOR: Final = 255


def cdi_spec(device: Path, folder: Path, uuids: tuple[str, ...]) -> dict[str, Any]:
    """Return a CDI spec for the cards: by index, by UUID, and "all"; 0.5, which podman 4 reads.

    https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
    """
    target = this_platform().library_directories[0]

    def node(path: str, minor: int) -> dict[str, Any]:
        return {"path": path, "type": "c", "major": _NVIDIA_MAJOR, "minor": minor}

    nodes = [node(f"/dev/nvidia{index}", index) for index in range(len(uuids))]
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [nodes[index]]}}
        for index, card in enumerate(uuids)
        for name in (str(index), card)
    ]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": nodes}})
    mounts = [
        {
            "hostPath": str(folder / name),
            "containerPath": f"{target}/{name}",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]
    mounts.append(
        {
            "hostPath": str(device),
            "containerPath": DEVICE_IN_CONTAINER,
            "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
        }
    )
    return {
        "cdiVersion": "0.5.0",
        "kind": CDI_KIND,
        "devices": devices,
        "containerEdits": {
            "deviceNodes": [node("/dev/nvidiactl", _NVIDIACTL_MINOR)],
            "mounts": mounts,
        },
    }
