# SPDX-License-Identifier: Apache-2.0
"""Watches tenants' processes for their end, and serves the tenants' sockets; the main thread's.

Other threads say what to watch through `Loop.call`.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from collections.abc import Callable

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Loop
from gpushare.daemon.pages.tenant_socket import TenantSocket

_PAUSE_SECONDS = 0.5


class ProcessWatch:
    """`ended` is called, on the main thread, with the key of a tenant whose process has ended."""

    def __init__(self, loop: Loop) -> None:
        self.ended: Callable[[str], None] = lambda _: None
        #: Called with a tenant's key, its card number, and the bytes that it could not allocate.
        self.shortfall: Callable[[str, int, int], None] = lambda *_: None
        self._loop = loop
        self._pidfds: dict[str, int] = {}
        self._sockets: dict[str, TenantSocket] = {}

    def process(self, key: str, pidfd: int) -> None:
        """Watch the process of `pidfd`, which is owned from now on."""
        self._close_pidfd(key)
        self._pidfds[key] = pidfd
        self._loop.read(pidfd, lambda: self._process_ended(key, pidfd))

    def listen(self, tenant_socket: TenantSocket) -> None:
        """Receive a tenant's messages."""
        self._close_socket(tenant_socket.key)
        self._sockets[tenant_socket.key] = tenant_socket
        tenant_socket.shortfall = lambda card, size: self.shortfall(tenant_socket.key, card, size)
        self._loop.read(tenant_socket.listener.fileno(), lambda: self._accept(tenant_socket))

    def forget(self, key: str) -> None:
        """Watch tenant `key` no more."""
        self._close_pidfd(key)
        self._close_socket(key)

    def close(self) -> None:
        """Close everything; the tenants keep running."""
        for key in {*self._pidfds, *self._sockets}:
            self.forget(key)

    def _process_ended(self, key: str, pidfd: int) -> None:
        # It stays readable; once is enough, and a later check looks at the process again.
        self._loop.forget(pidfd)
        self.ended(key)

    def _accept(self, tenant_socket: TenantSocket) -> None:
        if not tenant_socket.arrivals.take(time.monotonic()):
            self._pause(tenant_socket)
            return
        try:
            connection = tenant_socket.accept(self._most_of(tenant_socket))
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # With no descriptor free the listener stays ready.
            log("descriptors-exhausted", "error", tenant=tenant_socket.key)
            self._pause(tenant_socket)
            return
        if connection is not None:
            self._loop.read(connection.fileno(), lambda: self._receive(tenant_socket, connection))

    def _most_of(self, tenant_socket: TenantSocket) -> int:
        """Return how many connections a tenant may have: no crowd takes the daemon's descriptors.

        All of them together a quarter, and each its part of that whatever the others have; the
        rest is for other work: what starts a container needs some, and nothing rests on these.
        """
        capacity = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        others = sum(len(other.connections) for other in self._sockets.values())
        others -= len(tenant_socket.connections)
        return max(capacity // max(1, len(self._sockets)), capacity - others)

    def _pause(self, tenant_socket: TenantSocket, connection: socket.socket | None = None) -> None:
        """Leave a tenant's listener, or one of its connections, alone for a while."""
        paused = connection or tenant_socket.listener
        fd = paused.fileno()
        self._loop.forget(fd)

        def resume() -> None:
            if self._sockets.get(tenant_socket.key) is not tenant_socket:
                return
            if connection is None:
                self._loop.read(fd, lambda: self._accept(tenant_socket))
            elif connection in tenant_socket.connections:
                self._loop.read(fd, lambda: self._receive(tenant_socket, connection))

        self._loop.later(_PAUSE_SECONDS, resume)

    def _receive(self, tenant_socket: TenantSocket, connection: socket.socket) -> None:
        fd = connection.fileno()
        if not tenant_socket.receive(connection, time.monotonic()):
            self._loop.forget(fd)
        elif tenant_socket.is_flooded:
            # A tenant that sends without end would keep the main thread busy.
            self._pause(tenant_socket, connection)

    def _close_pidfd(self, key: str) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:
            self._loop.forget(pidfd)
            os.close(pidfd)

    def _close_socket(self, key: str) -> None:
        tenant_socket = self._sockets.pop(key, None)
        if tenant_socket is not None:
            for each in (tenant_socket.listener, *tenant_socket.connections):
                self._loop.forget(each.fileno())
            tenant_socket.close()
