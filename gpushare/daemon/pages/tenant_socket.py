# SPDX-License-Identifier: Apache-2.0
"""A tenant's own socket: its processes report that they use the driver, and events.

Events are log messages and shortfalls. The socket identifies the tenant; nothing in a message is
believed beyond that. One message is one packet of at most MESSAGE_BYTES. A hello is only logged, so
a restarted daemon misses nothing: /proc and the status page list the processes. Shortfalls are
checked elsewhere (limits/burst.py), at most `_SHORTFALL_RATE` a second of one tenant. Packets are
read without room for descriptors, so that none is ever received, and at most `_RATE` a second; all
processes that a tenant may have can connect and send their hello at once. The main thread owns
everything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare import abi
from gpushare.daemon.core.allowance import Allowance
from gpushare.daemon.core.log import log

_RATE: Final = 20.0  # messages a second of one tenant, in the long run
_BURST: Final = 200.0
_SHORTFALL_RATE: Final = 4.0  # as often as one process reports it; all of them are checked anyway
_SHORTFALL_BURST: Final = 8.0
_CONNECTIONS: Final = abi.MAX_PROCESSES
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)
_LEVELS: Final = {3: "error", 4: "warning", 6: "info", 7: "debug"}


@dataclass
class TenantSocket:
    """The listening socket of tenant `key` and what is connected to it."""

    key: str
    listener: socket.socket
    connections: set[socket.socket] = field(default_factory=set)
    allowance: Allowance = field(default_factory=lambda: Allowance(_BURST, _RATE))
    arrivals: Allowance = field(default_factory=lambda: Allowance(2.0 * abi.MAX_PROCESSES, _RATE))
    shortfalls: Allowance = field(
        default_factory=lambda: Allowance(_SHORTFALL_BURST, _SHORTFALL_RATE)
    )
    shortfall: Callable[[int, int], None] = lambda *_: None  # called with card number and bytes

    @staticmethod
    def is_there(directory: int) -> bool:
        """Whether there is a socket in the directory open at `directory`."""
        try:
            found = os.stat(abi.SOCKET_NAME, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISSOCK(found.st_mode)

    @classmethod
    def listen(cls, key: str, directory: int) -> TenantSocket:
        """Listen in the directory open at `directory`, in place of a socket of that name."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(abi.SOCKET_NAME, dir_fd=directory)
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            # bind(2) knows no directory descriptor; its path in /proc is short enough as well.
            listener.bind(f"/proc/self/fd/{directory}/{abi.SOCKET_NAME}")
            # Any uid of the tenant may connect; no other process reaches the directory.
            os.chmod(abi.SOCKET_NAME, 0o666, dir_fd=directory)  # noqa: S103
            listener.listen(abi.MAX_PROCESSES)  # none waits; others get no answer
        except BaseException:
            listener.close()
            raise
        return cls(key, listener)

    def close(self) -> None:
        """Close the listener and every connection."""
        for connection in self.connections:
            connection.close()
        self.connections.clear()
        self.listener.close()

    def accept(self, most: int = _CONNECTIONS) -> socket.socket | None:
        """Return a new connection; None when there is none, or the tenant has `most` already.

        OSError EMFILE and ENFILE pass through: the caller has no descriptor left.
        """
        try:
            connection, _ = self.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        connection.setblocking(False)
        if len(self.connections) >= min(most, _CONNECTIONS):
            connection.close()
            return None
        self.connections.add(connection)
        return connection

    @property
    def is_flooded(self) -> bool:
        """Whether the tenant has sent more than its allowance: what it sends now can wait."""
        return min(self.allowance.left, self.arrivals.left) < 1.0

    def receive(self, connection: socket.socket, now: float) -> bool:
        """Receive one message at `now`; False when the connection is over and was closed."""
        try:
            packet = connection.recv(abi.MESSAGE_BYTES + 1)
        except BlockingIOError:
            return True
        except ConnectionError:
            packet = b""
        if not packet or not self._handle(connection, packet, now):
            self.connections.discard(connection)
            connection.close()
            return False
        return True

    def _handle(self, connection: socket.socket, packet: bytes, now: float) -> bool:
        """Act on a message; False for one that no library of ours sends."""
        if not abi.MESSAGE_TEXT <= len(packet) <= abi.MESSAGE_BYTES:
            return False
        kind, level, pid, text_bytes = abi.MESSAGE_HEADER.unpack_from(packet)
        if text_bytes != len(packet) - abi.MESSAGE_TEXT:
            return False
        if not (self.arrivals if kind == abi.MESSAGE_HELLO else self.allowance).take(now):
            return True
        if kind == abi.MESSAGE_HELLO:
            self._greet(connection, pid)
        elif kind == abi.MESSAGE_LOG and level in _LEVELS:
            text = packet[abi.MESSAGE_TEXT :].decode(errors="replace")
            log(
                "tenant-log-received", _LEVELS[level], tenant=self.key, container_pid=pid, text=text
            )
        elif kind == abi.MESSAGE_SHORTFALL and len(packet) == abi.SHORTFALL_BYTES:
            _, card, _, _, wanted_bytes = abi.SHORTFALL.unpack(packet)
            if self.shortfalls.take(now):
                self.shortfall(card, wanted_bytes)
        else:
            return False
        return True

    def _greet(self, connection: socket.socket, pid: int) -> None:
        size = _CREDENTIALS.size
        option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        host_pid = _CREDENTIALS.unpack(option)[0]
        log("tenant-process-attached", "debug", tenant=self.key, pid=host_pid, container_pid=pid)
