# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of an eviction, and a program in the container that is evicted."""

from __future__ import annotations

import ctypes
import json
import mmap
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare import abi

from .conftest import ProgramContainer, program
from .gate import wake
from .tenant import InterposedTenant, receive

SECONDS = 60


class WrittenEviction:
    """The daemon's side of an eviction: the word in the grant page."""

    def __init__(self, tenant: InterposedTenant) -> None:
        with tenant.grant.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), abi.GRANT_BYTES)

    def set(self, value: int) -> None:
        """Write the word, and wake those that wait for it."""
        word = ctypes.c_uint32.from_buffer(self._map, abi.GRANT_HEADER_EVICTED)
        word.value = value
        wake(word)


class EvictingDaemon:
    """The tenant's socket, as far as requests for a restore go."""

    def __init__(self, tenant: InterposedTenant) -> None:
        self._listener = tenant.listen()
        self._connections: list[socket.socket] = []

    def close(self) -> None:
        """End, and leave no socket behind."""
        path = self._listener.getsockname()
        for one in (self._listener, *self._connections):
            one.close()
        Path(path).unlink()

    def next_request(self) -> int:
        """Return the PID that the next request for a restore names; other messages are skipped."""
        while True:
            if not self._connections:
                self._connections.append(self._listener.accept()[0])
            self._connections[-1].settimeout(SECONDS)
            message = receive(self._connections[-1])
            if message is None:
                self._connections.pop().close()
            elif message.type == abi.MESSAGE_RESTORE:
                return message.pid

    def has_request_within(self, seconds: float) -> bool:
        """Return whether a connected process sends one in that time."""
        self._connections.append(self._listener.accept()[0])
        self._connections[-1].settimeout(seconds)
        try:
            while message := receive(self._connections[-1]):
                if message.type == abi.MESSAGE_RESTORE:
                    return True
        except TimeoutError:
            pass
        return False


class EvictedProgram:
    """A program in the container that says one thing for each line that it is sent."""

    def __init__(self, container: ProgramContainer, *lines: str) -> None:
        self.process = container.start(sys.executable, "-c", program(*lines))

    def says(self) -> list[object]:
        """Return what it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        said: list[object] = json.loads(line)
        return said

    def go_on(self) -> None:
        """Let it continue behind its `sys.stdin.readline()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def waits(self) -> bool:
        """Return whether the main thread sleeps on a futex."""
        return "futex" in Path(f"/proc/{self.process.pid}/wchan").read_text(encoding="ascii")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail if it never holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running(container: ProgramContainer, *lines: str) -> Iterator[EvictedProgram]:
    """Run a program that is killed at the end."""
    started = EvictedProgram(container, *lines)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()
