# SPDX-License-Identifier: Apache-2.0
"""Processes that /proc and pidfd_open(2) show to the daemon, and that nobody has started."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from gpushare.daemon.identity import processes

#: The last that proc(5) allows: hardly any process has one of these.
_numbers = itertools.count((1 << 22) - 8000)


@dataclass
class FakeProcess:
    """Runs until it is killed, as subprocess.Popen of a `sleep` does."""

    name: str = "sleep"
    cgroup: str | None = None  # None: that of the tests
    parent: int = 1
    flags: int = 0
    pid: int = field(default_factory=lambda: next(_numbers))
    starttime: int = 1000
    returncode: int | None = None
    ended: int = field(default_factory=lambda: os.eventfd(0))  # what its pidfds are

    def __post_init__(self) -> None:
        _known[self.pid] = self

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        if self.returncode is None:
            self.returncode = -signal.SIGKILL
            os.eventfd_write(self.ended, 1)

    def wait(self) -> int | None:
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def read(self, name: str) -> bytes | None:
        """Return what /proc has in the file of that name; None: as of any other process."""
        if self.returncode is not None:
            raise FileNotFoundError
        if name == "stat":
            rest = f"S {self.parent} 1 1 0 -1 {self.flags}{' 0' * 10} 1 0 {self.starttime} 0"
            return f"{self.pid} ({self.name}) {rest}".encode()
        if name == "status":
            return f"Uid:\t{os.getuid()}\nNSpid:\t{self.pid}\nSigPnd:\t0\n".encode()
        files = {"comm": f"{self.name}\n", "maps": ""}
        if self.cgroup is not None:
            files["cgroup"] = f"0::{self.cgroup}\n"
        text = files.get(name)
        return None if text is None else text.encode()


#: Those of the test that runs, by number, and by the pidfds that the daemon has opened.
_known: dict[int | str, FakeProcess] = {}
_opened: dict[int, FakeProcess] = {}


@contextmanager
def seen(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the daemon see the processes that are made in the block."""
    read, pidfd_open, send = processes._read, os.pidfd_open, signal.pidfd_send_signal

    def read_fake(pid: int | str, name: str) -> bytes:
        process = _known.get(pid)
        if process is not None:
            text = process.read(name)
            return read("self", name) if text is None else text
        opened = _opened.get(int(name[len("fdinfo/") :])) if name.startswith("fdinfo/") else None
        if opened is None:
            return read(pid, name)
        return b"Pid:\t%d\n" % (opened.pid if opened.returncode is None else -1)

    def open_fake(pid: int, flags: int = 0) -> int:
        process = _known.get(pid)
        if process is None:
            pidfd = pidfd_open(pid, flags)
            _opened.pop(pidfd, None)
            return pidfd
        if process.returncode is not None:
            raise ProcessLookupError
        pidfd = os.dup(process.ended)
        _opened[pidfd] = process
        return pidfd

    def send_fake(pidfd: int, number: int) -> None:
        process = _opened.get(pidfd)
        if process is None:
            send(pidfd, number)
        elif number == signal.SIGKILL:
            process.kill()

    patch.setattr(processes, "_read", read_fake)
    patch.setattr(os, "pidfd_open", open_fake)
    patch.setattr(signal, "pidfd_send_signal", send_fake)
    yield
    for process in _known.values():
        os.close(process.ended)
    _known.clear()
    _opened.clear()
