# SPDX-License-Identifier: Apache-2.0
"""Watches tenants' processes for their end, and serves the tenants' sockets; the main thread's.

Other threads say what to watch through `Loop.call`.

By a tenant's own socket its processes report log messages, shortfalls, and that they wait for the
restore of their memory. The socket identifies the tenant; nothing in a message is believed beyond
that. One message is one packet of at most MESSAGE_BYTES. Shortfalls are checked elsewhere
(limits.py), at most `_SHORTFALL_RATE` a second of one tenant. Packets are read without room for
descriptors, so that none is ever received, and at most `_RATE` a second; all processes that a
tenant may have can connect at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpushare import abi
from gpushare.daemon.core.log import Allowance, log
from gpushare.daemon.core.loop import Loop, Signal


class ProcessWatch:
    """The processes and sockets that are watched, on the main thread.

    `clock` returns seconds, by which tenants may send messages.
    """

    def __init__(self, loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
        #: With the key of a tenant whose process has ended.
        self.ended: Signal[[str]] = Signal()
        #: With a tenant's key, its card number and the bytes that it could not allocate.
        self.shortfall: Signal[[str, int, int]] = Signal()
        #: With the key of a tenant of which a call of the driver waits for its restore.
        self.restore: Signal[[str]] = Signal()
        self._loop, self._clock = loop, clock
        self._pidfds: dict[str, int] = {}
        self._sockets: dict[str, TenantSocket] = {}

    def process(self, key: str, pidfd: int) -> None:
        """Watch the process of `pidfd`, which is owned from now on."""
        self._close_pidfd(key)
        self._pidfds[key] = pidfd

        def ended() -> None:
            # It stays readable; once is enough, and a later check looks at the process again.
            self._loop.forget(pidfd)
            self.ended(key)

        self._loop.read(pidfd, ended)

    def listen(self, tenant_socket: TenantSocket) -> None:
        """Receive a tenant's messages."""
        self._close_socket(tenant_socket.key)
        self._sockets[tenant_socket.key] = tenant_socket
        self._loop.read(tenant_socket.listener.fileno(), partial(self._accept, tenant_socket))

    def forget(self, key: str) -> None:
        """Watch tenant `key` no more."""
        self._close_pidfd(key)
        self._close_socket(key)

    def close(self) -> None:
        """Close everything; the tenants keep running."""
        for key in {*self._pidfds, *self._sockets}:
            self.forget(key)

    def _accept(self, tenant_socket: TenantSocket) -> None:
        again = partial(self._accept, tenant_socket)
        if not tenant_socket.arrivals.take(self._clock()):
            self._loop.pause(tenant_socket.listener, again)
            return
        try:
            connection, _ = tenant_socket.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # With no descriptor free the listener stays ready.
            log("descriptors-exhausted", "error", tenant=tenant_socket.key)
            self._loop.pause(tenant_socket.listener, again)
            return
        if len(tenant_socket.connections) >= self._most_of(tenant_socket):
            connection.close()
            return
        connection.setblocking(False)
        tenant_socket.connections.add(connection)
        self._loop.read(connection.fileno(), partial(self._receive, tenant_socket, connection))

    def _most_of(self, tenant_socket: TenantSocket) -> int:
        """Return how many connections a tenant may have: no crowd takes the daemon's descriptors.

        All of them together a quarter, and each its part of that whatever the others have; the
        rest is for other work: what starts a container needs some, and nothing rests on these.
        """
        capacity = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        others = sum(len(other.connections) for other in self._sockets.values())
        others -= len(tenant_socket.connections)
        own = max(capacity // max(1, len(self._sockets)), capacity - others)
        return min(own, abi.MAX_PROCESSES)

    def _receive(self, tenant_socket: TenantSocket, connection: socket.socket) -> None:
        try:
            packet = connection.recv(abi.MESSAGE_BYTES + 1)
        except BlockingIOError:
            return
        except ConnectionError:
            packet = b""
        if not packet or not self._handle(tenant_socket, packet):
            self._loop.forget(connection.fileno())
            tenant_socket.connections.discard(connection)
            connection.close()
        elif tenant_socket.allowance.left < 1.0:
            # A tenant that sends without end would keep the main thread busy.
            self._loop.pause(connection, partial(self._receive, tenant_socket, connection))

    def _handle(self, tenant_socket: TenantSocket, packet: bytes) -> bool:
        """Act on a message; False for one that no library of ours sends."""
        if not abi.MESSAGE_TEXT <= len(packet) <= abi.MESSAGE_BYTES:
            return False
        kind, level, pid, text_bytes = abi.MESSAGE_HEADER.unpack_from(packet)
        if text_bytes != len(packet) - abi.MESSAGE_TEXT:
            return False
        now = self._clock()
        if not tenant_socket.allowance.take(now):
            return True
        if kind == abi.MESSAGE_LOG and level in _LEVELS:
            text = packet[abi.MESSAGE_TEXT :].decode(errors="replace")
            log(
                "tenant-log-received",
                _LEVELS[level],
                tenant=tenant_socket.key,
                container_pid=pid,
                text=text,
            )
        elif kind == abi.MESSAGE_SHORTFALL and len(packet) == abi.SHORTFALL_BYTES:
            _, card, _, _, wanted_bytes = abi.SHORTFALL.unpack(packet)
            if tenant_socket.shortfalls.take(now):
                self.shortfall(tenant_socket.key, card, wanted_bytes)
        elif kind == abi.MESSAGE_RESTORE:
            self.restore(tenant_socket.key)
        else:
            return False
        return True

    def _close_pidfd(self, key: str) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:
            self._loop.forget(pidfd)
            os.close(pidfd)

    def _close_socket(self, key: str) -> None:
        tenant_socket = self._sockets.pop(key, None)
        if tenant_socket is not None:
            for endpoint in (tenant_socket.listener, *tenant_socket.connections):
                self._loop.forget(endpoint.fileno())
                endpoint.close()


_RATE: Final = 20.0  # messages a second of one tenant, in the long run
_BURST: Final = 200.0
_SHORTFALL_RATE: Final = 4.0  # as often as one process reports it; all of them are checked anyway
_SHORTFALL_BURST: Final = 8.0
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
