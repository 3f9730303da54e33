# SPDX-License-Identifier: Apache-2.0
"""The process of a control daemon: started so that it outlives gpushared, and found again after.

Its folders are below the run directory, one for each card, with short names: a socket's path has at
most 107 bytes. What a later gpushared has to know of it is in a file there.

Server and clients of protocol 2 share files of a fixed name in /dev/shm (cuda.shm.*,
NVIDIA/k8s-device-plugin, issue 467). The control daemon of a card gets one of its own there, in a
mount namespace of its own, and the card's containers the same: no container sees the host's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.daemon.identity import processes
from gpushare.daemon.mps.program import ControlProgram

#: Runs a program whose /dev/shm is another folder: sys.argv[1], and the program with its arguments.
_WITH_SHARED_MEMORY: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, BIND, REC, PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
for done in (
    libc.unshare(NEWNS),
    libc.mount(None, b"/", None, REC | PRIVATE, None),
    libc.mount(sys.argv[1].encode(), b"/dev/shm", None, BIND, None),
):
    if done:
        sys.exit("/dev/shm: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"""
_STATE: Final = "state.json"
_MOST_BYTES: Final = 1 << 20
_MOST_LOG_BYTES: Final = 4 << 20  # of each log: they are on a tmpfs


@dataclass(frozen=True)
class CardFolders:
    """Where the control daemon of one card has its files."""

    root: Path

    @classmethod
    def of(cls, run_dir: Path, uuid: str) -> CardFolders:
        """Return those of a card."""
        return cls(run_dir / "mps" / hashlib.sha256(uuid.encode()).hexdigest()[:8])

    @property
    def pipe(self) -> Path:
        """Its sockets."""
        return self.root / "p"

    @property
    def log(self) -> Path:
        """Its logs, and those of its servers."""
        return self.root / "log"

    @property
    def shared_memory(self) -> Path:
        """Its /dev/shm."""
        return self.root / "shm"

    def make(self) -> None:
        """Make them; any user's process reaches the sockets, once its container has the folder."""
        for folder, mode in (
            (self.root.parent, 0o711),
            (self.root, 0o711),
            (self.pipe, 0o755),
            (self.log, 0o700),
            (self.shared_memory, 0o1777),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def trim_logs(self) -> None:
        """Empty logs that have grown: the control daemon logs each command, and rotates none."""
        for path in self.log.glob("**/*.log"):
            with contextlib.suppress(OSError):
                if path.stat().st_size > _MOST_LOG_BYTES:
                    os.truncate(path, 0)

    def read_state(self) -> dict[str, Any]:
        """Return what an earlier gpushared has written; nothing if that cannot be read."""
        try:
            with (self.root / _STATE).open("rb") as opened:
                found = json.loads(opened.read(_MOST_BYTES))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Write what a later gpushared has to know; OSError."""
        draft = self.root / f".{_STATE}"
        draft.write_text(json.dumps(state), encoding="utf-8")
        draft.chmod(0o600)
        draft.rename(self.root / _STATE)

    def forget_state(self) -> None:
        """Remove it: the control daemon has ended."""
        with contextlib.suppress(OSError):
            (self.root / _STATE).unlink()


class ControlProcess:
    """A running control daemon: this gpushared's child, or an earlier one's."""

    def __init__(
        self, pid: int, starttime: int, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Hold process `pid`; ProcessLookupError if it has ended, or is another by now."""
        self.pid, self.starttime, self._child = pid, starttime, child
        # A child keeps its PID until it is waited for, also one that has ended already.
        found = processes.open_pidfd(pid, starttime) if child is None else os.pidfd_open(pid)
        if found is None:
            raise ProcessLookupError(f"process {pid} has ended")
        self.pidfd = found

    @classmethod
    def start(cls, program: ControlProgram, folders: CardFolders) -> ControlProcess:
        """Start one; OSError. Its output is in its log folder."""
        argv = program.arguments()
        if program.protocol == 2:
            helper = (sys.executable, "-I", "-S", "-c", _WITH_SHARED_MEMORY)
            argv = [*helper, str(folders.shared_memory), *argv]
        with (folders.log / "output.log").open("ab") as output:
            child = subprocess.Popen(
                argv,
                env=program.environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                umask=0o022,
            )
        return cls(child.pid, processes.start_time(child.pid) or 0, child)

    def has_ended(self) -> bool:
        """Whether it has ended; a child is then waited for."""
        ended = bool(select.select([self.pidfd], [], [], 0)[0])
        if ended and self._child is not None:
            self._child.poll()
        return ended

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        select.select([self.pidfd], [], [], seconds)
        return self.has_ended()

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.wait(1.0)

    def close(self) -> None:
        """Watch it no more; it keeps running."""
        os.close(self.pidfd)


def last_output(folders: CardFolders) -> str:
    """Return the last line that a control daemon has printed, "" for none."""
    with contextlib.suppress(OSError):
        lines = (folders.log / "output.log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
