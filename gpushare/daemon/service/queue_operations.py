# SPDX-License-Identifier: Apache-2.0
"""Operations of the queue, for `gpushare run --wait` and `gpushare queue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.lifecycle.queue import Applicant, Queue
from gpushare.daemon.lifecycle.ticket_request import has_secret
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    MalformedRequest,
    Operation,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ticket import ID, SECRET, TicketSource
from gpushare.daemon.views.queue_rows import queue_rows, ticket_status
from gpushare.protocol.queue import Ticket, TicketStatus

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
