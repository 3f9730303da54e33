# SPDX-License-Identifier: Apache-2.0
"""A tenant's own socket: its processes say who holds the driver, and what is to be known of it.

That is what they want logged, and that the driver has not got what they were promised. Which socket
a message came through says whose it is; nothing in it is believed beyond that. One message is one
packet of at most MESSAGE_BYTES. A hello is noted in the log and nothing rests on it, so that a
daemon that was started again misses nothing: who holds the driver, /proc and the status page say.
What is lacking is for others to believe or not (memory/lack.py), and heard no more than
`_LACKS_RATE` times a second of one tenant. Packets are read without room for descriptors, so that
none is ever received, and no more of them than `_RATE` a second; every process that a tenant may
have can arrive and greet at once. The main thread owns all.
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
from gpushare.daemon.log import log

_RATE: Final = 20.0  # messages a second of one tenant, in the long run
_BURST: Final = 200.0
_LACKS_RATE: Final = 4.0  # as often as one process says it; who acts looks at all of them anyway
_LACKS_BURST: Final = 8.0
_CONNECTIONS: Final = abi.MAX_PROCESSES
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)
_LEVELS: Final = {3: "error", 4: "warning", 6: "info", 7: "debug"}


@dataclass
class Allowance:
    """How many messages a tenant may still send: `rate` a second, `burst` saved up at most."""

    burst: float = _BURST
    rate: float = _RATE
    at: float = 0.0
    dropped: int = 0
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now: float) -> bool:
        """Whether one more message may be heard at `now` (seconds of a monotonic clock)."""
        self.left = min(self.burst, self.left + max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.left < 1.0:
            self.dropped += 1
            return False
        self.left -= 1.0
        return True


@dataclass
class TenantSocket:
    """The listening socket of tenant `key` and what is connected to it."""

    key: str
    listener: socket.socket
    connections: set[socket.socket] = field(default_factory=set)
    allowance: Allowance = field(default_factory=Allowance)
    arrivals: Allowance = field(default_factory=lambda: Allowance(2.0 * abi.MAX_PROCESSES))
    lacking: Allowance = field(default_factory=lambda: Allowance(_LACKS_BURST, _LACKS_RATE))
    lacks: Callable[[int, int], None] = lambda *_: None  # called with card number and bytes

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
            # Any uid of the tenant may speak; nobody else reaches the directory.
            os.chmod(abi.SOCKET_NAME, 0o666, dir_fd=directory)  # noqa: S103
            listener.listen(abi.MAX_PROCESSES)  # none waits, and who is turned away says nothing
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
        """Whether the tenant has said more than is heard: what it sends now can wait."""
        return min(self.allowance.left, self.arrivals.left) < 1.0

    def receive(self, connection: socket.socket, now: float) -> bool:
        """Hear one message at `now`; False when the connection is over and was closed."""
        try:
            packet = connection.recv(abi.MESSAGE_BYTES + 1)
        except BlockingIOError:
            return True
        except ConnectionError:
            packet = b""
        if not packet or not self._hear(connection, packet, now):
            self.connections.discard(connection)
            connection.close()
            return False
        return True

    def _hear(self, connection: socket.socket, packet: bytes, now: float) -> bool:
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
            log("tenant-said", _LEVELS[level], tenant=self.key, container_pid=pid, text=text)
        elif kind == abi.MESSAGE_LACKS and len(packet) == abi.LACK_BYTES:
            _, card, _, _, wanted_bytes = abi.LACK.unpack(packet)
            if self.lacking.take(now):
                self.lacks(card, wanted_bytes)
        else:
            return False
        return True

    def _greet(self, connection: socket.socket, pid: int) -> None:
        size = _CREDENTIALS.size
        option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        host_pid = _CREDENTIALS.unpack(option)[0]
        log("tenant-process", "debug", tenant=self.key, pid=host_pid, container_pid=pid)
