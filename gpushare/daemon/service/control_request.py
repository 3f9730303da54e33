# SPDX-License-Identifier: Apache-2.0
"""One request to the control socket: its fields, its caller, and how it is refused.

Whether the caller is a container's process is decided by its cgroup, not by its uid: root in a
container without a user namespace is uid 0 to the kernel as well. An operator may mount the socket
into a container by mistake; its processes are tenants all the same, and tenants have a socket of
their own. A process cannot leave its tenant's cgroup while it lives. A caller that has ended by the
time it is looked up, so that its PID may be another process's, is refused too.
"""

from __future__ import annotations

import array
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gpushare import protocol
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle.bind import ReservationNotFound
from gpushare.daemon.lifecycle.tenant_names import TenantNotFound
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.oci.cdi import CdiError
from gpushare.oci.spec import SpecError
from gpushare.protocol.operations import MalformedRequest, Operation
from gpushare.quota.errors import QuotaError, printable, quoted

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


# An answer: rows, and what stands beside `ok` in the final packet.
ControlReply = tuple[Iterable[Mapping[str, Any]], Mapping[str, Any]]
_MOST_SHOWN: Final = 200  # characters of a key or value


@dataclass(frozen=True)
class BoundOperation:
    """An operation, and what answers a request for it."""

    row: Operation
    run: Callable[[ControlRequest], ControlReply]


def reply(fields: Mapping[str, Any] | None = None) -> ControlReply:
    """Return an answer of no rows, with `fields` beside `ok`."""
    return (), fields or {}


#: The first that an error is one of says its code. A spec that cannot be read contains no request:
#: a container that has only a weak marker starts without a GPU (runtime/launcher.c, judge).
_CODES: Final = (
    (protocol.CODE_NOT_FOUND, (TenantNotFound, ReservationNotFound)),
    (protocol.CODE_FORBIDDEN, (Forbidden,)),
    (protocol.CODE_INVALID, (MalformedRequest, protocol.ProtocolError)),
    (protocol.CODE_REFUSED, (QuotaError, UserError)),
    (protocol.CODE_INTERNAL, (SpecError, CdiError, OSError)),
)


def refusal_packet(error: Exception) -> dict[str, Any] | None:
    """Return the final packet for an error of the caller's request, None for a fault of ours."""
    code = next((code for code, kinds in _CODES if isinstance(error, kinds)), None)
    if code is None:
        return None
    text, about = str(error), dict[str, Any]()
    if code == protocol.CODE_NOT_FOUND:
        about = {"candidates": getattr(error, "candidates", [])}
    elif isinstance(error, QuotaError):
        value = None if error.value is None else error.value[:_MOST_SHOWN]
        about = {"key": error.where[:_MOST_SHOWN], "value": value, "fix": error.fix[:_MOST_SHOWN]}
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'gpushared'}: {error.strerror}"
    return {"ok": False, "code": code, "error": text[:4000], **about}


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

    def waiter(self, acknowledge: Callable[[], None]) -> Callable[[float], None]:
        """Return ControlRequest.waits: meanwhile the client waits as if it were in a queue."""

        def waits(seconds: float) -> None:
            self.deadline = time.monotonic() + seconds + protocol.REPLY_SECONDS
            self.queued = seconds > 0
            if self.queued:
                acknowledge()

        return waits

    def begin(self) -> None:
        """Note that a worker has begun with the request."""
        self.deadline = time.monotonic() + protocol.REPLY_SECONDS
        self.queued = False


def decode_request(packet: bytes) -> dict[str, Any]:
    """Return the fields of a request; MalformedRequest if a text is not valid Unicode.

    Files, logs and databases cannot store half of a surrogate pair, which JSON can express.
    """
    fields = protocol.decode(packet)
    for key, value in fields.items():
        for text in (key, *_texts(value)):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise MalformedRequest(
                    f"{printable(key)} {quoted(text)}: not UTF-8 text. Use complete Unicode "
                    "characters, without halves of surrogate pairs"
                ) from None
    return fields


def _texts(value: Any) -> Iterator[str]:
    """Yield all keys and texts in `value`, however deep."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]


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
