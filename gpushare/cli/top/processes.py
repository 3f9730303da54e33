# SPDX-License-Identifier: Apache-2.0
"""The user and the command line of a process, which top reads from /proc."""

from __future__ import annotations

import functools
import pwd
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpushare.cli.top.snapshot import ProcessRow, TopSnapshot

_PROC: Final = Path("/proc")


def with_commands(snapshot: TopSnapshot, proc: Path = _PROC) -> TopSnapshot:
    """Return `snapshot` with the user and the command line of each process.

    They stay empty for a process that has exited, and if the process with this PID has another
    name: it is another process, or `proc` is that of another PID namespace.
    """
    containers = tuple(
        replace(one, processes=tuple(_described(process, proc) for process in one.processes))
        for one in snapshot.containers
    )
    return replace(snapshot, containers=containers)


def _described(process: ProcessRow, proc: Path) -> ProcessRow:
    folder = proc / str(process.pid)
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
        words = (folder / "cmdline").read_bytes()
    except OSError:
        return process
    # proc_pid_status(5): `Name:` is the first line, `Uid:` begins with the real one.
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    uid = fields.get("Uid", "").split()
    if fields.get("Name") != process.name or not uid:
        return process
    command = words.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return replace(process, user=_user(int(uid[0])), command=command)


@functools.cache
def _user(uid: int) -> str:
    """Return the name of a user of this host, or the number of another one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
