# SPDX-License-Identifier: Apache-2.0
"""What differs between machines: where libraries lie and how the loader's cache marks them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Platform:
    """One architecture that NVIDIA's driver is made for.

    `multiarch` is Debian's name of it; `cache_flags` marks its libraries in ld.so.cache (glibc,
    sysdeps/generic/ldconfig.h); `loader` is the path of glibc's; `elf_machine` is e_machine of
    its programs (elf(5)).
    """

    machine: str
    multiarch: str
    cache_flags: int
    loader: str
    elf_machine: int

    @property
    def library_directories(self) -> tuple[str, ...]:
        """Where glibc's loader looks by itself: on Debian and its kin, and on the others."""
        return (f"/usr/lib/{self.multiarch}", "/usr/lib64")


_PLATFORMS: Final = {
    platform.machine: platform
    for platform in (
        Platform("x86_64", "x86_64-linux-gnu", 0x0303, "/lib64/ld-linux-x86-64.so.2", 62),
        Platform("aarch64", "aarch64-linux-gnu", 0x0A03, "/lib/ld-linux-aarch64.so.1", 183),
    )
}


def platform_of(machine: str) -> Platform:
    """Return the platform that uname(2) calls `machine`; ValueError where the driver has none."""
    platform = _PLATFORMS.get(machine)
    if platform is None:
        known = ", ".join(sorted(_PLATFORMS))
        raise ValueError(f"gpushare does not run on {machine}: it knows {known}")
    return platform


def this_platform() -> Platform:
    """Return the platform of this machine; ValueError as `platform_of`."""
    return platform_of(os.uname().machine)
