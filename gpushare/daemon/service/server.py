# SPDX-License-Identifier: Apache-2.0
"""The control socket: connections, packets, acknowledgements. It knows no operation's meaning.

Everything of a socket happens on the main thread; an operation runs on a worker, and its packets
come back through `Loop.call`. A slow reader costs its own connection and nothing else. Descriptors
are received from root only: whoever else sends some finds them closed.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import stat
import struct
import time
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import protocol
from gpushare.daemon.identity.caller import place_of
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.service.door import Door
from gpushare.daemon.service.request import Forbidden, Peer, Request
from gpushare.daemon.service.requests import operation, refusal
from gpushare.daemon.service.worker import Worker

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)
_MOST_FDS: Final = 4
_MOST_CONNECTIONS: Final = 512
_MOST_OF_ONE_USER: Final = 64  # root excepted: engines start containers as root
_PAUSE_SECONDS: Final = 0.5
_DRAIN_SECONDS: Final = 10.0
_TOLD_SECONDS: Final = 10.0
#: Whose refusal is logged.
_CHANGES: Final = frozenset(
    {"create", "open", "bind", "set", "pause", "resume", "kick"}
    | {"card-policy", "card-cordon", "card-uncordon"}
)


@dataclass(eq=False)
class Connection:
    """One client. A request is answered before the next one is read."""

    socket: socket.socket
    peer: Peer
    outgoing: deque[bytes] = field(default_factory=deque)
    busy: bool = False
    draining: bool = False
    closed: bool = False


class Server:
    """Serves whoever comes, or waits, at the `door`."""

    def __init__(self, door: Door, node: Node, readers: Worker) -> None:
        self._door = door
        self._node = node
        self._loop = node.loop
        self._readers = readers
        self._connections: set[Connection] = set()
        self._told_until = 0.0
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for waiting in door.open():
            self._welcome(waiting)
        self._listen()

    def stop_accepting(self) -> None:
        """Leave those who come to whoever serves the socket next; the others are answered."""
        self._loop.forget(self._door.listener.fileno())

    def close(self) -> None:
        """End every connection, and take the socket away."""
        self.stop_accepting()
        self._door.close()
        for connection in list(self._connections):
            self._close(connection)

    def rebind_if_lost(self) -> None:
        """Listen anew where somebody has deleted the socket."""
        path = self._door.path
        try:
            there = stat.S_ISSOCK(path.lstat().st_mode)
        except FileNotFoundError:
            there = False
        if not there:
            log("socket-lost", "warning", path=str(path))
            self._loop.forget(self._door.listener.fileno())
            self._door.listen_again()
            self._listen()

    def _listen(self) -> None:
        self._loop.read(self._door.listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._door.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            self._shed()
            return
        self._welcome(accepted)

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        pid, uid, _ = _CREDENTIALS.unpack(
            accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        peer = Peer(pid, uid, place_of(accepted, pid, self._node.ledger.entries))
        if self._is_crowded(peer):
            accepted.close()
            return
        connection = Connection(accepted, peer)
        self._connections.add(connection)
        self._loop.read(accepted.fileno(), lambda: self._receive(connection))

    def _is_crowded(self, peer: Peer) -> bool:
        if peer.is_root:
            return False
        same = sum(other.peer.uid == peer.uid for other in self._connections)
        return len(self._connections) >= _MOST_CONNECTIONS or same >= _MOST_OF_ONE_USER

    def _shed(self) -> None:
        """Out of descriptors: turn one client away with the spare one, and rest.

        The listener stays readable as long as somebody waits, so without the rest we would spin.
        """
        log("descriptors-exhausted", "error")
        os.close(self._spare)
        with contextlib.suppress(OSError):
            self._door.listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        fd = self._door.listener.fileno()
        self._loop.forget(fd)

        def resume() -> None:
            if fd == self._door.listener.fileno() and not self._loop.watches(fd):
                self._loop.read(fd, self._accept)

        self._loop.later(_PAUSE_SECONDS, resume)

    def _receive(self, connection: Connection) -> None:
        if connection.busy:
            # Closed, or a request before the last one was answered: neither has an answer.
            self._close(connection)
            return
        try:
            packet, fds, flags = _receive(connection)
        except BlockingIOError:
            return
        except OSError:
            packet, fds, flags = b"", (), 0
        if not packet:
            _close_all(fds)
            self._close(connection)
            return
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) > _MOST_FDS:
            _close_all(fds)
            limit = protocol.MAX_REQUEST_BYTES
            self._refuse(connection, f"a request has at most {limit} bytes and 2 descriptors")
            return
        self._start(connection, packet, fds)

    def _start(self, connection: Connection, packet: bytes, fds: tuple[int, ...]) -> None:
        try:
            request = Request(protocol.decode(packet), connection.peer, fds)
            asked = operation(request)
        except ValueError as error:
            _close_all(fds)
            self._refuse(connection, str(error))
            return
        except Forbidden as error:
            _close_all(fds)
            self._tell_of(connection.peer, str(error))
            self._refuse(connection, str(error), protocol.CODE_FORBIDDEN)
            return
        connection.busy = True
        self._send(connection, {"ack": True})
        begun = time.monotonic()
        worker = self._node.decide if asked.changes else self._readers
        worker.submit(lambda: self._work(connection, request, begun))

    def _work(self, connection: Connection, request: Request, begun: float) -> None:
        """Do what was asked, on a worker; nothing for a client that has given up by now."""
        op, failure = request.fields.get("op"), None
        try:
            if connection.closed or time.monotonic() > begun + protocol.REPLY_SECONDS:
                log("request-late", "warning", op=op)
                failure = "late"
                return
            failure = self._answer(connection, request)
        finally:
            _close_all(request.fds)
            self._node.durations.note(op, time.monotonic() - begun, failure)

    def _answer(self, connection: Connection, request: Request) -> str | None:
        """Answer, and return the code of a refusal."""
        failure = None
        try:
            rows, last = operation(request).run(request, self._node)
            packets = [protocol.encode({"row": row}) for row in rows]
            packets.append(protocol.encode({"ok": True, **last}))
        except Exception as error:  # noqa: BLE001 - a fault with one request is not the others'
            told = _failed(request, error)
            failure = str(told["code"])
            packets = [protocol.encode(told)]
        self._loop.call(lambda: self._finish(connection, packets))
        return failure

    def _finish(self, connection: Connection, packets: list[bytes]) -> None:
        connection.busy = False
        connection.outgoing.extend(packets)
        self._flush(connection)

    def _tell_of(self, peer: Peer, error: str) -> None:
        """Log that one asked whose socket this is not; a crowd of them does not fill the log."""
        now = time.monotonic()
        if now >= self._told_until:
            self._told_until = now + _TOLD_SECONDS
            log("request-refused", "warning", pid=peer.pid, uid=peer.uid, error=error)

    def _refuse(self, connection: Connection, text: str, code: str = protocol.CODE_USAGE) -> None:
        self._send(connection, {"ok": False, "code": code, "error": text[:2000]})
        if not connection.outgoing:
            self._close(connection)

    def _send(self, connection: Connection, message: Mapping[str, Any]) -> None:
        connection.outgoing.append(protocol.encode(dict(message)))
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        """Send what waits; what cannot be sent now is, when the client has read, or never."""
        if connection.closed:
            return
        fd = connection.socket.fileno()
        while connection.outgoing:
            try:
                connection.socket.send(connection.outgoing[0])
            except BlockingIOError:
                self._loop.write(fd, lambda: self._flush(connection))
                if not connection.draining:
                    connection.draining = True
                    self._loop.later(_DRAIN_SECONDS, lambda: self._give_up(connection))
                return
            except OSError:
                self._close(connection)
                return
            connection.outgoing.popleft()
        self._loop.write(fd, None)

    def _give_up(self, connection: Connection) -> None:
        connection.draining = False
        if connection.outgoing:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._connections.discard(connection)
        self._loop.forget(connection.socket.fileno())
        connection.socket.close()


def _receive(connection: Connection) -> tuple[bytes, tuple[int, ...], int]:
    """Return one packet, the descriptors with it and the flags of recvmsg(2)."""
    size = protocol.MAX_REQUEST_BYTES
    if not connection.peer.is_root:
        # Without room for them the kernel drops whatever descriptors were sent.
        packet, _, flags, _ = connection.socket.recvmsg(size)
        return packet, (), flags & ~socket.MSG_CTRUNC
    packet, ancillary, flags, _ = connection.socket.recvmsg(
        size, socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, tuple(fds), flags


def _failed(request: Request, error: Exception) -> dict[str, Any]:
    """Return the final packet for `error`, and log it."""
    told = refusal(error)
    op = request.fields.get("op")
    if told is None:
        log("request-failed", "error", op=op, traceback=traceback.format_exc())
        text = f"gpushared failed ({type(error).__name__}); see its log: journalctl -u gpushared"
        return {"ok": False, "code": protocol.CODE_ERROR, "error": text}
    if op in _CHANGES:
        named = (request.fields.get(field) for field in ("id", "name", "card"))
        identity = str(next(filter(None, named), ""))
        log("request-refused", "warning", op=op, id=identity[:128], error=told["error"])
    return told


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
