# SPDX-License-Identifier: Apache-2.0
"""Operations of a tenant's lifecycle, for the launcher, the hook and `gpushare run`.

For gpushare-node, which speaks with the kubelet of this machine, those of what its scheduler has
allocated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from gpushare.daemon.freezer import runs_unbound
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import release, scheduled
from gpushare.daemon.lifecycle.bind import bind, owned_record
from gpushare.daemon.lifecycle.create import LAUNCHER, NewContainer, create
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.lifecycle.queue import (
    Applicant,
    Queue,
    RoomForStarts,
    TicketNotFound,
    find_granted,
    has_secret,
)
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    Forbidden,
    MalformedRequest,
    Operation,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import UID, ClaimedDevice, ClaimRecord
from gpushare.daemon.store.ticket import ID, SECRET, TicketRecord, TicketSource
from gpushare.daemon.views.status_rows import queue_rows, ticket_status
from gpushare.errors import UserError
from gpushare.protocol.kubernetes import (
    CLAIM_DEVICES_MAX,
    CLAIM_PODS_MAX,
    AllocationFolder,
    ClaimDevice,
    ClaimStatus,
)
from gpushare.protocol.queue import Ticket, TicketStatus
from gpushare.quota.errors import quoted


class CheckpointRefused(UserError):
    """The container uses a GPU."""


_IDENTITY: Final = re.compile(r"[A-Za-z0-9_][\w+.-]{0,127}", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MOST_PID: Final = 1 << 22  # PID_MAX_LIMIT


def _create(room: RoomForStarts, request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    if len(request.fds) != 2:
        raise MalformedRequest("create needs two descriptors: the bundle and its root filesystem")
    bundle = NewContainer(
        identity=request.matched("id", _IDENTITY),
        path=request.text("bundle"),
        marker=request.text("marker"),
        bundle_fd=request.fds[0],
        rootfs_fd=request.fds[1],
        maker=request.peer.pid,
        binds=request.fields.get("bind") == LAUNCHER,
        is_restore=request.fields.get("verb") == "restore",
        is_abandoned=request.is_abandoned,
        waits=request.waits,
        about=request.about,
    )
    return reply(create(bundle, state, room))


def _checkpoint(request: ControlRequest, state: DaemonState) -> ControlReply:
    """Refuse the dump of a container with a GPU: it would end, and could not be restored."""
    request.root_only()
    identity = request.matched("id", _IDENTITY)
    for record in state.ledger.entries.values():
        if record.id == identity and record.allocations:
            raise CheckpointRefused(
                f"container {record.title} uses a GPU, and a checkpoint has no state of the "
                "driver. Let the program save its state itself."
            )
    return reply()


def _bind(request: ControlRequest, state: DaemonState) -> ControlReply:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    _refuse_other_users(request, key, state)
    if request.fds:
        return _bind_made(request, key, identity, state)
    pid = request.number("pid", 1, _MOST_PID)
    if not request.peer.is_root and processes.owner_of(pid) != request.peer.uid:
        raise Forbidden(f"process {pid} is another user's")
    bind(key, identity, pid, request.peer.pid, state)
    return reply()


def _bind_made(
    request: ControlRequest, key: str, identity: str, state: DaemonState
) -> ControlReply:
    """Bind a container that its launcher has made, and of whose init it sends a pidfd."""
    request.root_only()
    if len(request.fds) != 1:
        raise MalformedRequest("bind takes one descriptor: a pidfd of the container's init process")
    pid = processes.pid_of(request.fds[0])
    if pid is None:
        raise MalformedRequest("the descriptor is not a pidfd")
    bind(key, identity, pid, request.peer.pid, state, pidfd=request.fds[0])
    return reply()


def _release(request: ControlRequest, state: DaemonState) -> ControlReply:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    _refuse_other_users(request, key, state)
    if key not in state.ledger.entries:
        return reply()
    record = owned_record(key, identity, state)
    if record.state == "reserved":
        if not runs_unbound(record):  # else the end of its launcher counts
            release.release_tenant(key, state, "the runtime abandoned it")
    else:
        release.handle_process_end(key, state)
    return reply()


def _refuse_other_users(request: ControlRequest, key: str, state: DaemonState) -> None:
    """Refuse callers other than root and the user that opened a host process's tenant."""
    record = state.ledger.entries.get(key)
    if request.peer.is_root:
        return
    if record is None or record.engine != "host" or record.uid != request.peer.uid:
        raise Forbidden("this requires root; use sudo")


def _open(room: RoomForStarts, request: ControlRequest, state: DaemonState) -> ControlReply:
    quota = request.fields.get("quota")
    if not isinstance(quota, dict) or not all(isinstance(text, str) for text in quota.values()):
        raise MalformedRequest("quota is not an object of strings")
    rootless = request.flag("rootless") or not request.peer.is_root
    name = str(request.fields.get("name") or "")[:128]
    command = HostCommand(name=name, uid=request.peer.uid, rootless=rootless, waits=request.waits)
    ticket = _granted_ticket(request, state) if "ticket" in request.fields else None
    return reply({**open_tenant(command, quota, state, room, ticket)})


def _granted_ticket(request: ControlRequest, state: DaemonState) -> TicketRecord:
    """Return the ticket that the caller itself has taken; TicketNotFound: it is not granted."""
    ticket = find_granted(request.matched("ticket", SECRET), state)
    if ticket is None or ticket.pid != request.peer.pid:
        raise TicketNotFound("the ticket has ended or is another process's. Run the command again")
    return ticket


_MOST_BYTES: Final = 1 << 50  # of a card
_MOST_PARAMETERS: Final = 16
#: The name of a namespace, or of a claim (RFC 1123).
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def _allocation(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    uuid, memory_bytes = request.text("card", 96), request.number("memory_bytes", 1, _MOST_BYTES)
    folder = scheduled.allocation_folder(uuid, memory_bytes, state.node.loaded(), state.node.config)
    return reply({**AllocationFolder(folder=folder)})


def _prepare(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    claim = ClaimRecord(
        request.matched("claim", UID),
        request.matched("namespace", _NAME),
        request.matched("name", _NAME),
        _pods(request),
        tuple(_devices(request)),
        _parameters(request),
    )
    return reply({**scheduled.prepare(claim, state)})


def _set_pods(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    scheduled.set_pods(request.matched("claim", UID), _pods(request), state)
    return reply()


def _unprepare(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    scheduled.unprepare(request.matched("claim", UID), state)
    return reply()


def _claims(_request: ControlRequest, state: DaemonState) -> ControlReply:
    return (dict(_claim_row(claim, state)) for claim in state.ledger.claims.values()), {}


def _claim_row(claim: ClaimRecord, state: DaemonState) -> ClaimStatus:
    return ClaimStatus(
        claim=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        pods=list(claim.pods),
        devices=[
            ClaimDevice(
                request=device.request,
                card=device.card,
                memory_bytes=device.memory_bytes,
                cores=device.cores,
                share=device.share,
            )
            for device in claim.devices
        ],
        parameters=dict(claim.parameters),
        tenants=[
            record.id for record in state.ledger.entries.values() if record.claim == claim.uid
        ],
    )


def _pods(request: ControlRequest) -> tuple[str, ...]:
    """Return the UIDs of the pods in a request; MalformedRequest."""
    found = request.fields.get("pods")
    if not isinstance(found, list) or len(found) > CLAIM_PODS_MAX:
        raise MalformedRequest(f"pods is not a list of at most {CLAIM_PODS_MAX} UIDs")
    for uid in found:
        if not isinstance(uid, str) or not UID.fullmatch(uid):
            raise MalformedRequest(f"pods: {quoted(str(uid))} is not the UID of a pod")
    return tuple(dict.fromkeys(found))


def _devices(request: ControlRequest) -> Iterator[ClaimedDevice]:
    """Yield the devices in a request; MalformedRequest."""
    found = request.fields.get("devices")
    if not isinstance(found, list) or not 1 <= len(found) <= CLAIM_DEVICES_MAX:
        raise MalformedRequest(f"devices is not a list of 1 to {CLAIM_DEVICES_MAX}")
    for fields in found:
        if not isinstance(fields, dict):
            raise MalformedRequest("devices has an entry that is not an object")
        device = ControlRequest(fields, request.peer)
        yield ClaimedDevice(
            device.text("request", 253),
            device.text("card", 96),
            device.number("memory_bytes", 1, _MOST_BYTES),
            device.number("cores", 0, 100),
            device.text("share", 253) if fields.get("share") else "",
        )


def _parameters(request: ControlRequest) -> dict[str, str]:
    """Return the parameters in a request, by canonical key; MalformedRequest."""
    found: Any = request.fields.get("parameters", {})
    if not isinstance(found, dict) or len(found) > _MOST_PARAMETERS:
        raise MalformedRequest(f"parameters is not an object of at most {_MOST_PARAMETERS} keys")
    return {key: ControlRequest(found, request.peer).text(key, 64) for key in sorted(found)}


def lifecycle_operations(room: RoomForStarts) -> dict[str, Operation]:
    """Return the operations, by name; `room` is for starts that have none."""
    return {
        "create": Operation(partial(_create, room), "create"),
        "checkpoint": Operation(_checkpoint, "decide"),
        "bind": Operation(_bind, "decide"),
        "release": Operation(_release, "decide"),
        "open": Operation(partial(_open, room), "create"),
        "allocation": Operation(_allocation, "decide"),
        "claim-prepare": Operation(_prepare, "decide"),
        "claim-pods": Operation(_set_pods, "decide"),
        "claim-unprepare": Operation(_unprepare, "decide"),
        "claims": Operation(_claims),
    }


# --- operations of the queue, for `gpushare run --wait` and `gpushare queue` ---

_MOST_WAIT_SECONDS: Final = 30 * 86400
_MOST_KEYS: Final = 64
_KINDS: Final = ("command", "container")


def _queue(_request: ControlRequest, state: DaemonState) -> ControlReply:
    return (dict(row) for row in queue_rows(state)), {}


def _poll(request: ControlRequest, state: DaemonState) -> ControlReply:
    identity, secret = request.matched("ticket", ID), request.matched("secret", SECRET)
    ticket = state.ledger.tickets.get(identity)
    if ticket is not None and has_secret(ticket, secret):
        return reply({**ticket_status(ticket, state)})
    ended = TicketStatus(
        state="ended",
        position=0,
        waiting=len(state.queue.waiting),
        reason=state.queue.ended.get(identity, ""),
        since=0.0,
    )
    return reply({**ended})


class _QueueOperations:
    """The operations that change the queue; the decide thread's."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def take(self, request: ControlRequest, _state: DaemonState) -> ControlReply:
        if request.text("kind", 16) not in _KINDS:
            raise MalformedRequest(f"kind is not one of {', '.join(_KINDS)}")
        if not request.peer.pid:
            raise MalformedRequest("the client is in a PID namespace that gpushared cannot see")
        seconds = request.number("wait_seconds", 0, _MOST_WAIT_SECONDS)
        applicant = Applicant(
            name=str(request.fields.get("name") or "")[:128],
            uid=request.peer.uid,
            pid=request.peer.pid,
            is_rootless=request.flag("rootless") or not request.peer.is_root,
            kind="container" if request.fields["kind"] == "container" else "command",
            wait_seconds=seconds or None,
        )
        source = TicketSource(
            options=_texts(request, "quota"),
            variables=_texts(request, "variables"),
            annotations=_texts(request, "annotations"),
            cards=request.text("cards", 256) if request.fields.get("cards") else "",
        )
        ticket, secret = self._queue.take(applicant, source)
        return reply({**Ticket(ticket=ticket.id, secret=secret)})

    def cancel(self, request: ControlRequest, _state: DaemonState) -> ControlReply:
        ticket = self._queue.cancel(request.matched("ticket", ID), request.peer.uid)
        return reply({"ticket": ticket.id, "name": ticket.name})


def _texts(request: ControlRequest, name: str) -> dict[str, str]:
    """Return an object of texts in a request; MalformedRequest."""
    found = request.fields.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise MalformedRequest(f"{name} is not an object of strings")
    if len(found) > _MOST_KEYS:
        raise MalformedRequest(f"{name} has more than {_MOST_KEYS} keys")
    return found


def queue_operations(queue: Queue) -> Mapping[str, Operation]:
    """Return the operations of the queue, by name."""
    run = _QueueOperations(queue)
    return {
        "queue": Operation(_queue),
        "queue-take": Operation(run.take, "decide"),
        "queue-poll": Operation(_poll),
        "queue-cancel": Operation(run.cancel, "decide"),
    }
