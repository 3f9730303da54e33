# SPDX-License-Identifier: Apache-2.0
"""Which processes have the driver open: whoever has not is no client of it, however it is listed.

Of NVIDIA's driver that is a device node of one of its majors: a client ends with its descriptor. A
simulated device is a file that its clients map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.host.driver import nodes
from gpushare.host.tree import Tree

_NAMES: Final = ("nvidia", "dxg")  # /proc/devices; the second is WSL's


def holders(simulated: Mapping[str, str], root: Path) -> Callable[[int], bool]:
    """Return what tells whether a process has the driver open; `simulated` names such a device."""
    if simulated:
        [device] = map(Path, simulated.values())
        return lambda pid: _maps(pid, device)
    return lambda pid: _has_open(pid, Tree(root))


def _maps(pid: int, device: Path) -> bool:
    try:
        inode = device.stat().st_ino
    except OSError:
        return True  # a device that is lost: nothing can be told
    return processes.may_map(pid, inode)


def _has_open(pid: int, root: Tree) -> bool:
    majors = {major for name, major in nodes.majors(root).items() if name.startswith(_NAMES)}
    return not majors or processes.has_open(pid, majors)
