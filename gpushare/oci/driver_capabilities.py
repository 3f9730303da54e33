# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_DRIVER_CAPABILITIES: which parts of the driver a container asks for.

The parts are known by the names of their files, so that any CDI spec of a driver can be divided:
the spec itself says nothing of it.
Source: the variable's values and what each brings, NVIDIA container toolkit, "Driver Capabilities".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

VARIABLE: Final = "NVIDIA_DRIVER_CAPABILITIES"

COMPUTE: Final = "compute"
UTILITY: Final = "utility"
VIDEO: Final = "video"
GRAPHICS: Final = "graphics"
DISPLAY: Final = "display"
NGX: Final = "ngx"
COMPAT32: Final = "compat32"
ALL: Final = (COMPUTE, UTILITY, VIDEO, GRAPHICS, DISPLAY, NGX, COMPAT32)
DEFAULT: Final = frozenset({COMPUTE, UTILITY})
# These use the card past libcuda's exported names: no interposer mediates them.
UNINTERPOSED: Final = frozenset({VIDEO, GRAPHICS, DISPLAY, NGX, COMPAT32})

# By file name; the first that matches. A library is named without `.so` and what follows.
_FILES: Final = tuple(
    (capability, re.compile(pattern, re.ASCII))
    for capability, pattern in (
        (UTILITY, r"libnvidia-(ml|cfg|nscq|sandboxutils)"),
        (UTILITY, r"nvidia-(smi|debugdump|persistenced|imex|imex-ctl)|nv-fabricmanager"),
        (UTILITY, r"sandboxutils-filelist\.json"),
        (COMPUTE, r"libcuda|libcudadebugger|libcuda_loader|libnvidia-opencl|nvidia\.icd"),
        (COMPUTE, r"libnvidia-(gpucomp|nvvm(70)?|pkcs11(-openssl3)?|ptxjitcompiler|compiler)"),
        (COMPUTE, r"libnvidia-(fatbinaryloader|tileiras|allocator|nvcudart_hybrid64)"),
        (COMPUTE, r"nvidia-cuda-mps-(control|server)|nvidia-mps"),
        (VIDEO, r"libnvcuvid|libvdpau_nvidia|libnvidia-(encode|opticalflow)"),
        (NGX, r"libnvidia-ngx|nvidia-ngx-updater|_?nvngx(_dlssg)?\.dll"),
        (DISPLAY, r"nvidia_drv|libglxserver_nvidia|nvidia-drm-outputclass\.conf"),
        (GRAPHICS, r"lib(GLX|EGL|GLESv1_CM|GLESv2)_nvidia|libnvoptix|nvoptix\.bin"),
        (
            GRAPHICS,
            r"libnvidia-(eglcore|glcore|glsi|glvkspirv|tls|rtcore|cbl|fbc|ifr|gtk[23]|api|egl-[a-z]+)",
        ),
        (
            GRAPHICS,
            r"libnvidia-(vulkan-producer|present|wayland-client|vksc-core)",
        ),
        (GRAPHICS, r"nvidia-drm_gbm|nvidia-application-profiles-.*|nvidia(_icd|_layers).*\.json"),
        (GRAPHICS, r"[0-9]+_nvidia[a-z0-9_]*\.json|nvidia_icd_vksc\.json"),
    )
)
_FOLDERS_OF_32_BIT: Final = ("/i386-linux-gnu/", "/usr/lib32/", "/lib32/", "/usr/lib/i686/")
_GRAPHICS_NODES: Final = re.compile(r"/dev/(dri/.*|nvidia-modeset)", re.ASCII)


@dataclass(frozen=True)
class DriverCapabilities:
    """What the variable says. `unknown` are words of it that are no capability."""

    wanted: frozenset[str] = DEFAULT
    unknown: tuple[str, ...] = ()

    @property
    def uninterposed(self) -> tuple[str, ...]:
        """What of it goes past the interposer, in the order of the documentation."""
        return tuple(name for name in ALL if name in self.wanted & UNINTERPOSED)


def requested_capabilities(variables: Mapping[str, str]) -> DriverCapabilities:
    """Return what a process's environment asks for: compute and utility where it says nothing."""
    words = [word.strip() for word in variables.get(VARIABLE, "").split(",")]
    words = [word for word in words if word]
    if not words:
        return DriverCapabilities()
    if "all" in words:
        return DriverCapabilities(frozenset(ALL))
    unknown = tuple(dict.fromkeys(word for word in words if word not in ALL))
    return DriverCapabilities(frozenset(words) & frozenset(ALL), unknown)


def of_file(path: str) -> str | None:
    """Return the capability that the driver's file at `path` belongs to.

    None is one that belongs to none: firmware, sockets, and what a newer driver brings.
    """
    if any(folder in path for folder in _FOLDERS_OF_32_BIT):
        return COMPAT32
    name = PurePosixPath(path).name
    stem = name.partition(".so")[0]
    for capability, pattern in _FILES:
        if pattern.fullmatch(stem) or pattern.fullmatch(name):
            return capability
    return None


def is_node_of_graphics(path: str) -> bool:
    """Whether only graphics and display need the device node at `path`."""
    return _GRAPHICS_NODES.fullmatch(path) is not None
