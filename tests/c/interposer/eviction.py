# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of an eviction."""

from __future__ import annotations

import ctypes
import mmap
import socket
from pathlib import Path

from gpushare import abi

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
