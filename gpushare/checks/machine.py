# SPDX-License-Identifier: Apache-2.0
"""What kind of machine this is, where that changes what gpushare can do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.checks.check import Check
from gpushare.host.driver import wsl
from gpushare.host.tree import Tree
from gpushare.oci.platform import platform_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_USUAL: Final = "x86_64"
_TEGRA: Final = "/etc/nv_tegra_release"
_COMPATIBLE: Final = "/proc/device-tree/compatible"
_GRID: Final = ("/etc/nvidia/gridd.conf", "/usr/bin/nvidia-gridd")
_ENFORCE: Final = "/sys/fs/selinux/enforce"


def of_machine(root: Path = Path("/"), architecture: str | None = None) -> Iterator[Check]:
    """Yield a line for each thing that is unusual beneath `root`; nothing for a usual server.

    `architecture` is uname(2)'s machine, that of this machine where it is None.
    """
    host = Tree(root)
    yield from _architecture(architecture or os.uname().machine)
    if _is_jetson(host):
        yield Check(
            "warn",
            "Jetson: its GPU has no memory of its own, so there is nothing to share by quota; "
            "containers that ask for none start as before",
            "take a machine with a card, or try gpushare setup --simulate h200",
        )
    if wsl.is_here(host):
        yield Check(
            "warn",
            "WSL 2: one device node is every card and the driver names no processes, so quotas are "
            "held by the interposer alone, and nothing is measured beside it",
        )
    if any(host.at(path).exists() for path in _GRID):
        yield Check(
            "ok",
            "vGPU guest (GRID driver): quotas divide the memory that this machine was given; time "
            "on the card is the hypervisor's to give",
        )
    if host.text(_ENFORCE).strip() == "1":
        yield Check(
            "warn",
            "SELinux enforces: a container's pages bear its own label, and no policy of ours lets "
            "engines reach the daemon's socket where theirs does not",
            "where a container is refused: ausearch -m avc -ts recent",
        )


def _architecture(machine: str) -> Iterator[Check]:
    try:
        platform_of(machine)
    except ValueError as error:
        yield Check("fail", str(error), "use a machine of these")
        return
    if machine != _USUAL:
        yield Check("ok", f"{machine}: programs and libraries are built for it; none was measured")


def _is_jetson(host: Tree) -> bool:
    """Whether the kernel was started on a Tegra. Source: L4T; Devicetree, "compatible"."""
    return host.at(_TEGRA).exists() or "nvidia,tegra" in host.text(_COMPATIBLE)
