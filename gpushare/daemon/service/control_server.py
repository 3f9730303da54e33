# SPDX-License-Identifier: Apache-2.0
"""The control socket: connections, requests and their callers, packets and acknowledgements.

Everything of a socket happens on the main thread; an operation runs on the thread that its row of
the table names (gpushare/protocol/operations.py), and its packets come back through `Loop.call`.
A slow reader costs its own connection and nothing else. Descriptors are received from root only:
those of another caller are closed.

Whether the caller is a container's process is decided by its cgroup, not by its uid: root in a
container without a user namespace is uid 0 to the kernel as well. An operator may mount the socket
into a container by mistake; its processes are tenants all the same, and tenants have a socket of
their own. A process cannot leave its tenant's cgroup while it lives. A caller that has ended by the
time it is looked up, so that its PID may be another process's, is refused too.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import stat
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from gpushare import protocol
from gpushare.daemon.core.log import Allowances, count_event, log
from gpushare.daemon.core.loop import Worker, WorkerPool, credentials
from gpushare.daemon.eviction.steps import EvictionFailed, NotLocked
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle.bind import ReservationNotFound
from gpushare.daemon.lifecycle.queue import TicketNotFound
from gpushare.daemon.lifecycle.scheduled import UnknownClaim
from gpushare.daemon.operator.reload import InvalidFile
from gpushare.daemon.placement.request import NoSuchCard
from gpushare.daemon.service.systemd import StartingSocket, has_room_for
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import TenantNotFound
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import ErrorCode, UserError
from gpushare.oci.bounded_read import parse_object
from gpushare.oci.cdi import CdiError
from gpushare.oci.spec import SpecError
from gpushare.protocol.operations import MalformedRequest, Operation
from gpushare.quota.errors import QuotaError
from gpushare.wait_policy import LOOK_SECONDS

_SO_PEERPIDFD: Final = 77  # asm-generic/socket.h, since Linux 6.5

CallerOrigin = Literal["host", "tenant", "gone"]

MOST_FDS: Final = 4


def caller_origin(
    connection: socket.socket, pid: int, records: Mapping[str, TenantRecord]
) -> CallerOrigin:
    """Return where the process lives that connected; `pid` is its number (SO_PEERCRED).

    A process of another pid namespace has no number, and counts as the host's: every container's
    process has a number where gpushared runs.
    """
    if not pid:
        return "host"
    pidfd = _pidfd(connection, pid)
    if pidfd is None:
        return "gone"
    try:
        paths = processes.cgroups_of(pid)
        if not paths or processes.has_ended(pidfd):
            return "gone"
    finally:
        os.close(pidfd)
    return "tenant" if any(_is_of(record, paths) for record in records.values()) else "host"


def _is_of(record: TenantRecord, paths: Mapping[str, str]) -> bool:
    """Whether a process at `paths` is a tenant's; a command of `gpushare run` is of this host."""
    hierarchy, _, path = record.cgroup.partition(":")
    if not path or record.engine == "host":
        return False
    cgroup = paths.get(hierarchy, "/")
    return cgroup == path or cgroup.startswith(f"{path}/")


def _pidfd(connection: socket.socket, pid: int) -> int | None:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass  # before 6.5, or the process is gone: then the next fails too
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


class Forbidden(Exception):
    """Not for this caller; the text says which caller may."""


@dataclass(frozen=True)
class Peer:
    """The process at the other end, by the kernel (SO_PEERCRED), and where it runs."""

    pid: int
    uid: int
    place: CallerOrigin = "host"

    @property
    def is_root(self) -> bool:
        """Whether it may change what others have."""
        return self.uid == 0


@dataclass(frozen=True)
class ControlRequest:
    """One request: its fields, its sender, and the descriptors that came with it."""

    fields: Mapping[str, Any]
    peer: Peer
    fds: tuple[int, ...] = ()
    is_abandoned: Callable[[], bool] = lambda: False  # the caller has gone, or its time is over
    waits: Callable[[float], None] = lambda _: None  # has the caller wait for so many seconds more
    about: dict[str, Any] = field(default_factory=dict)  # its subject, for the log of a refusal

    def refuse_tenants(self) -> None:
        """Raise Forbidden if the caller is a container's process, or has exited."""
        if self.peer.place == "tenant":
            raise Forbidden(
                "this socket is for the host, not for containers: do not mount it there; to see a "
                "container's quota, run nvidia-smi in it"
            )
        if self.peer.place == "gone":
            raise Forbidden(
                "the process that connected has exited: gpushared cannot identify the client"
            )

    def root_only(self) -> None:
        """Raise Forbidden where the caller is not root."""
        if not self.peer.is_root:
            raise Forbidden("this requires root; use sudo")


# An answer: rows, or packets of them, and what stands beside `ok` in the final packet.
ControlReply = tuple[Iterable[Mapping[str, Any] | bytes], Mapping[str, Any]]
_MOST_SHOWN: Final = 200  # characters of a key or value


@dataclass(frozen=True)
class BoundOperation:
    """An operation, and what answers a request for it."""

    row: Operation
    run: Callable[[ControlRequest], ControlReply]


def reply(fields: Mapping[str, Any] | None = None) -> ControlReply:
    """Return an answer of no rows, with `fields` beside `ok`."""
    return (), fields or {}


#: What is not there, if it is no container.
_NOT_FOUND: Final[Mapping[type[Exception], str]] = {
    NoSuchCard: "card",
    TicketNotFound: "ticket",
    UnknownClaim: "uid",
}
#: The first that an error is one of says its code, and that the exit status (gpushare/errors.py).
#: A spec that cannot be read contains no request: a container that has only a weak marker starts
#: without a GPU (runtime/launcher.c, judge).
_CODES: Final = (
    (ErrorCode.NOT_FOUND, (TenantNotFound, ReservationNotFound, *_NOT_FOUND)),
    (ErrorCode.FORBIDDEN, (Forbidden,)),
    (ErrorCode.USAGE, (MalformedRequest, protocol.ProtocolError)),
    (ErrorCode.INVALID, (InvalidFile,)),
    (ErrorCode.REFUSED, (QuotaError, NotLocked)),
    (ErrorCode.FAILED, (EvictionFailed, SpecError, CdiError, OSError)),
    (ErrorCode.REFUSED, (UserError,)),
)


def refusal_packet(error: Exception) -> dict[str, Any] | None:
    """Return the final packet for an error of the caller's request, None for a fault of ours."""
    code = next((code for code, kinds in _CODES if isinstance(error, kinds)), None)
    if code is None:
        return None
    text, about = str(error), dict[str, Any]()
    if code is ErrorCode.NOT_FOUND:
        key = _NOT_FOUND.get(type(error), "name")
        about = {"key": key, "candidates": getattr(error, "candidates", [])}
    elif isinstance(error, QuotaError):
        value = None if error.value is None else error.value[:_MOST_SHOWN]
        about = {"key": error.where[:_MOST_SHOWN], "value": value, "fix": error.fix[:_MOST_SHOWN]}
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'gpushared'}: {error.strerror}"
    return {"ok": False, "code": code.text, "error": text[:4000], **about}


@dataclass(eq=False)
class Connection:
    """One client. A request is answered before the next one is read."""

    socket: socket.socket
    peer: Peer
    outgoing: deque[bytes] = field(default_factory=deque)
    busy: bool = False
    queued: bool = False  # its request waits for a worker
    deadline: float = 0.0  # after it no client waits for the answer
    draining: bool = False
    closed: bool = False

    def waits(self, seconds: float) -> None:
        """ControlRequest.waits: meanwhile the client waits as if it were in a queue."""
        self.deadline = time.monotonic() + seconds + protocol.REPLY_SECONDS
        self.queued = seconds > 0

    def begin(self) -> None:
        """Note that a worker has begun with the request."""
        self.deadline = time.monotonic() + protocol.REPLY_SECONDS
        self.queued = False


def decode_request(packet: bytes) -> dict[str, Any]:
    """Return the fields of a request, by the rules for a spec; MalformedRequest."""
    try:
        return parse_object(packet)
    except ValueError as error:
        raise MalformedRequest(f"not a JSON object: {error}") from error


def receive(connection: Connection) -> tuple[bytes, tuple[int, ...], int]:
    """Return one packet, the descriptors with it and the flags of recvmsg(2)."""
    size = protocol.MAX_ROOT_REQUEST_BYTES
    if not connection.peer.is_root:
        # Without room for them the kernel drops whatever descriptors were sent.
        packet, _, flags, _ = connection.socket.recvmsg(protocol.MAX_REQUEST_BYTES)
        return packet, (), flags & ~socket.MSG_CTRUNC
    packet, ancillary, flags, _ = connection.socket.recvmsg(
        size, socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, tuple(fds), flags


def close_all(fds: tuple[int, ...]) -> None:
    """Close the descriptors of a request."""
    for fd in fds:
        os.close(fd)


def find_operation(
    request: ControlRequest, operations: Mapping[str, BoundOperation]
) -> BoundOperation:
    """Return what `request` asks for; MalformedRequest, Forbidden."""
    op = request.fields.get("op")
    operation = operations.get(op) if isinstance(op, str) else None
    if operation is None or operation.row.thread != "main":
        request.refuse_tenants()
    if operation is None:
        raise MalformedRequest(f"op is not one of {', '.join(operations)}")
    return operation


_QUEUED_SECONDS: Final = 2.0  # how often a client whose request is in a queue is told so
_DRAIN_SECONDS: Final = 10.0
#: Connections and requests of one user other than root: at once, and a second.
_CONNECTS: Final = (512.0, 100.0)
_CHANGES_OF_ONE_USER: Final = (256.0, 20.0)
_READS_OF_ONE_USER: Final = (512.0, 50.0)
_TOO_MANY: Final = (
    "user {uid} has sent too many requests. Send at most 20 a second, or 50 that only read"
)
#: Codes of refusals that say nothing of this node: the caller may not ask, or asked nonsense.
_CALLERS_FAULT: Final = frozenset({"forbidden", "usage", "not-found"})


class ControlServer:
    """Serves the clients that connect, or wait, on `starting`."""

    def __init__(
        self,
        starting: StartingSocket,
        state: DaemonState,
        readers: Worker,
        operations: Mapping[str, BoundOperation],
    ) -> None:
        self._socket = starting
        self._state = state
        self._loop = state.loop
        self._readers = readers
        self._operations = operations
        self._connections: set[Connection] = set()
        self._served = 0.0  # when clients could last see that one was served
        self._connects, self._reads = Allowances(*_CONNECTS), Allowances(*_READS_OF_ONE_USER)
        self._changes = Allowances(*_CHANGES_OF_ONE_USER)
        for waiting in starting.open():
            self._welcome(waiting)
        self._listen()
        self._loop.every(lambda: _QUEUED_SECONDS, self._acknowledge)

    def stop_accepting(self) -> None:
        """Leave new clients to the next daemon that serves the socket; the others are answered."""
        self._loop.forget(self._socket.listener.fileno())

    def close(self) -> None:
        """End every connection, and take the socket away."""
        self.stop_accepting()
        self._socket.close()
        for connection in list(self._connections):
            self._close(connection)

    def rebind_if_lost(self) -> None:
        """Listen again if the socket was deleted."""
        path = self._socket.path
        try:
            there = stat.S_ISSOCK(path.lstat().st_mode)
        except FileNotFoundError:
            there = False
        if not there:
            log("socket-recreated", "warning", path=str(path))
            self._loop.forget(self._socket.listener.fileno())
            self._socket.listen_again()
            self._listen()

    def _listen(self) -> None:
        self._loop.read(self._socket.listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            log("descriptors-exhausted", "error")
            self._loop.pause(self._socket.listener, self._accept)
            return
        self._welcome(accepted)

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        pid, uid = credentials(accepted)
        if self._is_crowded(uid):  # before anything is read of the process
            accepted.close()
            return
        peer = Peer(pid, uid, caller_origin(accepted, pid, self._state.ledger.entries))
        connection = Connection(accepted, peer)
        self._connections.add(connection)
        self._loop.read(accepted.fileno(), lambda: self._receive(connection))

    def _is_crowded(self, uid: int) -> bool:
        users = self._state.node.users
        if not has_room_for(uid, Counter(other.peer.uid for other in self._connections), users):
            return True
        return uid != 0 and not self._connects.take(users.title(uid), time.monotonic())

    def _show_service(self) -> None:
        """Set the socket's modification time: a client that waits sees that others are served."""
        now = time.monotonic()
        if now > self._served + LOOK_SECONDS:
            self._served = now
            with contextlib.suppress(OSError):
                os.utime(self._socket.path)

    def _receive(self, connection: Connection) -> None:
        self._show_service()
        if connection.busy:
            # Closed, or a request before the last one was answered: neither has an answer.
            self._close(connection)
            return
        try:
            packet, fds, flags = receive(connection)
        except BlockingIOError:
            return
        except OSError:
            packet, fds, flags = b"", (), 0
        if not packet:
            self._close(connection)
        elif flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) > MOST_FDS:
            is_root = connection.peer.is_root
            limit = protocol.MAX_ROOT_REQUEST_BYTES if is_root else protocol.MAX_REQUEST_BYTES
            self._refuse(connection, f"a request has at most {limit} bytes and 2 descriptors")
        elif self._start(connection, packet, fds):
            return
        close_all(fds)

    def _start(self, connection: Connection, packet: bytes, fds: tuple[int, ...]) -> bool:
        """Have a worker run the request, and close `fds` then; False: it is answered already."""
        try:
            request = ControlRequest(decode_request(packet), connection.peer, fds)
            operation = find_operation(request, self._operations)
        except ValueError as error:
            self._refuse(connection, str(error))
            return False
        except Forbidden as error:
            _log_caller(request, str(error))
            self._refuse(connection, str(error), ErrorCode.FORBIDDEN)
            return False
        row = operation.row
        if row.thread == "main":
            self._send(connection, {"ok": True})
            return False
        begun, uid = time.monotonic(), connection.peer.uid
        allowances = self._changes if row.changes else self._reads
        if uid and not allowances.take(self._state.node.users.title(uid), begun):
            count_event("caller-refused")
            self._refuse(connection, _TOO_MANY.format(uid=uid), ErrorCode.REFUSED)
            return False
        connection.busy = connection.queued = True
        connection.deadline = begun + protocol.START_SECONDS
        self._send(connection, {"ack": True})

        def is_abandoned() -> bool:
            return connection.closed or time.monotonic() > connection.deadline

        request = replace(request, is_abandoned=is_abandoned, waits=connection.waits)
        workers: Mapping[str, Worker | WorkerPool] = {
            "read": self._readers,
            "decide": self._state.decide,
            "request": self._state.requests,
            "create": self._state.creates,
        }
        workers[row.thread].submit(lambda: self._work(connection, request, operation, begun))
        return True

    def _acknowledge(self) -> None:
        """Acknowledge the queued requests now and then: none is refused for those before it."""
        for connection in [other for other in self._connections if other.queued]:
            self._send(connection, {"ack": True})

    def _work(
        self,
        connection: Connection,
        request: ControlRequest,
        operation: BoundOperation,
        begun: float,
    ) -> None:
        """Run the operation, on a worker; nothing for a client that has given up by now."""
        op, failure = operation.row.name, None
        try:
            if request.is_abandoned():
                log("request-abandoned", "warning", op=op, uid=request.peer.uid)
                failure = "late"
                return
            if not operation.row.is_slow:
                connection.begin()
            failure = self._answer(connection, request, operation)
        finally:
            close_all(request.fds)
            self._state.durations.note(op, time.monotonic() - begun, failure)

    def _answer(
        self, connection: Connection, request: ControlRequest, operation: BoundOperation
    ) -> str | None:
        """Answer, and return the code of a refusal."""
        failure = None
        try:
            rows, last = operation.run(request)
            packets = [
                row if isinstance(row, bytes) else protocol.encode({"row": row}) for row in rows
            ]
            packets.append(protocol.encode({"ok": True, **last}))
        except Exception as error:  # noqa: BLE001 - a fault with one request is not the others'
            final = _failed(request, error, operation.row)
            failure = str(final["code"])
            packets = [protocol.encode(final)]

        self._loop.first(lambda: self._finish(connection, packets))
        return failure

    def _finish(self, connection: Connection, packets: list[bytes]) -> None:
        connection.busy = connection.queued = False
        connection.outgoing.extend(packets)
        self._flush(connection)

    def _refuse(self, connection: Connection, text: str, code: ErrorCode = ErrorCode.USAGE) -> None:
        self._send(connection, {"ok": False, "code": code.text, "error": text[:2000]})
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


def _failed(request: ControlRequest, error: Exception, row: Operation) -> dict[str, Any]:
    """Return the final packet for `error`, and log it."""
    refusal = refusal_packet(error)
    if refusal is None:
        uid = request.peer.uid
        log("request-failed", "error", op=row.name, uid=uid, traceback=traceback.format_exc())
        text = f"gpushared failed ({type(error).__name__}); see its log: journalctl -u gpushared"
        return {"ok": False, "code": ErrorCode.INTERNAL.text, "error": text}
    if refusal["code"] in _CALLERS_FAULT and not request.peer.is_root:
        _log_caller(request, refusal["error"])
    elif row.logs_refusal:
        named = (request.fields.get(field) for field in ("id", "name", "card"))
        identity = str(next(filter(None, named), ""))
        log(
            "request-refused",
            "warning",
            op=row.name,
            id=identity[:128],
            uid=request.peer.uid,
            error=refusal["error"],
            **request.about,
        )
    return refusal


def _log_caller(request: ControlRequest, error: str) -> None:
    """Log the refusal of a caller that has no right to ask; the history keeps none of these."""
    op, peer = str(request.fields.get("op"))[:32], request.peer
    log("caller-refused", "warning", op=op, pid=peer.pid, uid=peer.uid, error=error[:512])
