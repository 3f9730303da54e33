# SPDX-License-Identifier: Apache-2.0
"""The running processes of an engine's program, and since when. Source: proc(5)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_STARTTIME: Final = 22 - 3  # the field of /proc/PID/stat, counted from the one after the name


@dataclass(frozen=True)
class Process:
    """A process; `started` in seconds since the epoch."""

    pid: int
    words: tuple[str, ...]
    started: float

    def value(self, *flags: str) -> str | None:
        """Return what follows one of `flags` in the command line, None where none is given."""
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            name, equals, value = word.partition("=")
            if name in flags:
                return value if equals else following
        return None


def of_program(name: str, proc: Path = PROC, booted: float | None = None) -> list[Process]:
    """Return the processes whose command is `name` (comm: at most 15 bytes), the oldest first.

    `booted` is when the machine started, in seconds since the epoch, None: this one, to the tick
    (/proc/stat has whole seconds only).
    """
    if booted is None:
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found: list[Process] = []
    for folder in proc.glob("[0-9]*"):
        try:
            stat = os.fsdecode((folder / "stat").read_bytes())
            words = os.fsdecode((folder / "cmdline").read_bytes()).rstrip("\0").split("\0")
        except OSError:
            continue  # it ended
        before, _, after = stat.rpartition(")")
        if before.partition("(")[2] == name[:15]:
            ticks = int(after.split()[_STARTTIME])
            started = booted + ticks / os.sysconf("SC_CLK_TCK")
            found.append(Process(int(folder.name), tuple(words), started))
    return sorted(found, key=lambda process: process.started)
