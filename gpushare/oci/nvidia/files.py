# SPDX-License-Identifier: Apache-2.0
"""The driver's files among a spec's mounts, as a CDI device brings them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from gpushare.oci.driver import Driver
from gpushare.oci.nvidia.errors import unknown

# What nvidia-ctk lists (nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go and
# internal/discover/{graphics,ipc}.go), and libnvidia-container before it.
_FILE: Final = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9_-]+|[A-Za-z0-9]+_nvidia)\.so[0-9.]*"
    r"|nvidia-(smi|debugdump|persistenced|modprobe|cuda-mps-control|cuda-mps-server|imex|imex-ctl)"
    r"|nvidia_drv\.so|nvidia-drm_gbm\.so|libglxserver_nvidia\.so[0-9.]*|gsp_[a-z0-9]+\.bin"
    r"|[0-9]*_?nvidia[a-z0-9_.]*\.json|nvidia-application-profiles-[0-9.]+-[a-z-]+"
    r"|([0-9]+-)?nvidia[a-z-]*\.conf",
    re.ASCII,
)
_FOLDER: Final = re.compile(
    r"/nvidia-(persistenced|fabricmanager|mps)(/|$)|/(firmware|share)/nvidia/|/nvidia/(xorg|wine)/"
)
_SYSTEM: Final = ("/usr/", "/lib", "/etc/", "/run/", "/var/run/")


def find(mounts: Sequence[Mapping[str, Any]], driver: Driver) -> list[int]:
    """Return the indices of the mounts that are the driver's files."""
    known = {(mount.host_path, mount.container_path) for mount in driver.cdi.everything.mounts}
    return [
        index
        for index, mount in enumerate(mounts)
        if (_text(mount, "source"), _text(mount, "destination")) in known
        or (is_bind(mount) and _is_file(_text(mount, "destination")))
    ]


def refuse_unknown(mounts: Sequence[Mapping[str, Any]], known: Sequence[int]) -> None:
    """Refuse a file of NVIDIA's that came with the card and is not known.

    A CDI spec mounts it where the host has it; what a user mounts, models say, lies elsewhere.
    """
    for index, mount in enumerate(mounts):
        path = _text(mount, "destination")
        same = is_bind(mount) and path == _text(mount, "source")
        if index not in known and same and path.startswith(_SYSTEM) and "nvidia" in path:
            raise unknown(f"mount {path}")


def is_bind(mount: Mapping[str, Any]) -> bool:
    """Whether a mount shows a file or folder of the host."""
    options = mount.get("options") or []
    return mount.get("type") == "bind" or "bind" in options or "rbind" in options


def _is_file(path: str) -> bool:
    name = PurePosixPath(path).name
    return bool(_FILE.fullmatch(name) or _FOLDER.search(path))


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""
