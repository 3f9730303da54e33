# SPDX-License-Identifier: Apache-2.0
"""Which processes have a tenant's pages mounted: the kernel's word, not the tenant's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gpushare.abi import TENANT_DIR
from gpushare.daemon.identity.processes import Process, look
from gpushare.oci.bounded import read_at_most

_PROC: Final = Path("/proc")
_MOST_BYTES: Final = 1 << 20


def who_has(device: int) -> list[Process]:
    """Return the processes that have the file system `device` (st_dev) as a tenant's pages.

    Where the daemon itself has mounted them, for whom they were made, does not count.
    """
    known: dict[int, bool] = {}  # by mount namespace
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns/mnt").stat().st_ino
            if namespace not in known:
                known[namespace] = _is_mounted(entry / "mountinfo", device)
        except OSError:
            continue  # ended meanwhile
        if known[namespace] and (process := look(int(entry.name))) is not None:
            found.append(process)
    return found


def _is_mounted(mountinfo: Path, device: int) -> bool:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with mountinfo.open("rb") as file:
        lines = os.fsdecode(read_at_most(file.fileno(), _MOST_BYTES)).splitlines()
    # number, parent, device, root, mount point (proc(5))
    fields = (line.split(" ", 5) for line in lines)
    return any(len(line) > 4 and line[2] == wanted and TENANT_DIR in line[4] for line in fields)
