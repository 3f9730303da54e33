# SPDX-License-Identifier: Apache-2.0
"""The operations of the control socket: a function for each row of the table.

The table is gpushare/protocol/operations.py, which also says who may ask, on which thread the
function runs, and what its fields are. A function has the operation's name, and gets each field
checked. What it decides is decided below, in lifecycle/ and operator/; what it shows is of views/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from signal import Signals
from typing import Any, Final

from gpushare import protocol
from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.freezer import runs_unbound
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import (
    bind,
    create,
    host_process,
    queue,
    release,
    scheduled,
    tenant_names,
)
from gpushare.daemon.lifecycle.driver_loader import take_over_changed_driver
from gpushare.daemon.lifecycle.tenant_names import find_tenant
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.daemon.node import NoDriver
from gpushare.daemon.operator import reload, resize
from gpushare.daemon.operator.run_state import RunControl
from gpushare.daemon.placement.model import Card
from gpushare.daemon.placement.request import find_card
from gpushare.daemon.service.control_server import (
    BoundOperation,
    ControlReply,
    ControlRequest,
    Forbidden,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import ClaimedDevice, ClaimRecord
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.store.ticket import TicketKind, TicketRecord, TicketSource
from gpushare.daemon.views import metrics, why
from gpushare.daemon.views.daemon_status import status_row
from gpushare.daemon.views.event_pages import event_page
from gpushare.daemon.views.queue import queue_rows, ticket_status
from gpushare.daemon.views.rows import RowLookups, card_rows, interventions
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol.kubernetes import ClaimDevice
from gpushare.protocol.operations import OPENER, OPERATIONS, ROOT, MalformedRequest, Operation
from gpushare.protocol.queue import TicketStatus
from gpushare.protocol.rows import Intervention
from gpushare.quota.keys import KEYS, read
from gpushare.quota.request import ValueSource

_FIELDS: Final = {row.name: row.fields() for row in OPERATIONS.values()}
_MOST_NAME: Final = 128


class Operations:
    """The functions, by the operations' names with _ for -; one that names `request` gets it."""

    def __init__(
        self,
        state: DaemonState,
        control: RunControl,
        evictions: Evictions,
        tickets: queue.Queue,
        servers: MpsSupervisor,
    ) -> None:
        self._state, self._control, self._evictions = state, control, evictions
        self._tickets, self._servers = tickets, servers
        self._room = queue.RoomForStarts(evictions, tickets)

    def bound(self) -> dict[str, BoundOperation]:
        """Return the operations, by name, each with what answers it."""
        return {name: BoundOperation(row, self._runs(row)) for name, row in OPERATIONS.items()}

    def _runs(self, row: Operation) -> Callable[[ControlRequest], ControlReply]:
        function, fields = getattr(self, row.name.replace("-", "_")), _FIELDS[row.name]
        code = function.__code__
        takes_request = "request" in code.co_varnames[: code.co_argcount]

        def run(request: ControlRequest) -> ControlReply:
            if row.caller == ROOT:
                request.root_only()
            values = {field.parameter: field.read(request.fields) for field in fields}
            if row.caller == OPENER:
                self._refuse_other_users(request, values["key"])
            if takes_request:
                values["request"] = request
            answer: ControlReply = function(**values)
            return answer

        return run

    def _refuse_other_users(self, request: ControlRequest, key: str) -> None:
        """Refuse callers other than root and the user that opened a host process's tenant."""
        record = self._state.ledger.entries.get(key)
        if request.peer.is_root:
            return
        if record is None or record.engine != "host" or record.uid != request.peer.uid:
            raise Forbidden("this requires root; use sudo")

    # --- the start and the end of a container, and of a command of `gpushare run` ---

    def hello(self) -> ControlReply:
        return reply()

    def create(
        self, request: ControlRequest, identity: str, bundle: str, marker: str, verb: str, bind: str
    ) -> ControlReply:
        if len(request.fds) != 2:
            text = "create needs two descriptors: the bundle and its root filesystem"
            raise MalformedRequest(text)
        container = create.NewContainer(
            identity=identity,
            path=bundle,
            marker=marker,
            bundle_fd=request.fds[0],
            rootfs_fd=request.fds[1],
            maker=request.peer.pid,
            binds=bind == create.LAUNCHER,
            is_restore=verb == "restore",
            is_abandoned=request.is_abandoned,
            waits=request.waits,
            about=request.about,
        )
        return reply(create.create(container, self._state, self._room, self._servers))

    def checkpoint(self, identity: str) -> ControlReply:
        create.refuse_checkpoint(identity, self._state.ledger)
        return reply()

    def bind(
        self, request: ControlRequest, key: str, identity: str, pid: int | None, uncovered: str
    ) -> ControlReply:
        caller, fds = request.peer, request.fds
        if fds:  # its launcher has made it, and sends a pidfd of its init process
            request.root_only()
            if len(fds) != 1:
                text = "bind takes one descriptor: a pidfd of the container's init process"
                raise MalformedRequest(text)
            pid = processes.pid_of(fds[0])
        if pid is None:
            raise MalformedRequest("the descriptor is not a pidfd" if fds else "pid is missing")
        if not caller.is_root and processes.owner_of(pid) != caller.uid:
            raise Forbidden(f"process {pid} is another user's")
        bind.bind(key, identity, pid, caller.pid, self._state, pidfd=next(iter(fds), None))
        if fds and uncovered:
            log("driver-params-not-covered", "warning", tenant=key, error=uncovered)
        return reply()

    def release(self, key: str, identity: str) -> ControlReply:
        if key in self._state.ledger.entries:
            record = bind.owned_record(key, identity, self._state.node, self._state.ledger)
            if record.state != "reserved":
                release.handle_process_end(key, self._state)
            elif not runs_unbound(record):  # else the end of its launcher counts
                release.release_tenant(key, self._state, "the runtime abandoned it")
        return reply()

    def open(
        self,
        request: ControlRequest,
        quota: Mapping[str, str],
        name: str,
        rootless: bool,
        ticket: str,
    ) -> ControlReply:
        caller = request.peer
        command = host_process.HostCommand(
            name[:_MOST_NAME],
            caller.uid,
            rootless or not caller.is_root,
            request.waits,
            caller.pid,
        )
        granted = self._granted_ticket(ticket, caller.pid) if ticket else None
        return reply({**host_process.open_tenant(command, quota, self._state, self._room, granted)})

    def _granted_ticket(self, secret: str, pid: int) -> TicketRecord:
        """Return the ticket that the caller itself has taken; TicketNotFound: it is not granted."""
        ticket = queue.find_granted(secret, self._state.ledger)
        if ticket is None or ticket.pid != pid:
            raise queue.TicketNotFound(
                "the ticket has ended or is another process's. Run the command again"
            )
        return ticket

    # --- the queue ---

    def queue(self) -> ControlReply:
        return queue_rows(self._state), {}

    def queue_take(
        self,
        request: ControlRequest,
        kind: TicketKind,
        wait_seconds: int,
        name: str,
        rootless: bool,
        **source: Any,
    ) -> ControlReply:
        if not request.peer.pid:
            raise MalformedRequest("the client is in a PID namespace that gpushared cannot see")
        applicant = queue.Applicant(
            name=name[:_MOST_NAME],
            uid=request.peer.uid,
            pid=request.peer.pid,
            is_rootless=rootless or not request.peer.is_root,
            kind=kind,
            wait_seconds=wait_seconds or None,
        )
        requested = TicketSource(options=source.pop("quota"), **source)
        ticket, secret = self._tickets.take(applicant, requested)
        return reply({"ticket": ticket.id, "secret": secret})

    def queue_poll(self, ticket: str, secret: str) -> ControlReply:
        record = self._state.ledger.tickets.get(ticket)
        if record is not None and queue.has_secret(record, secret):
            return reply({**ticket_status(record, self._state)})
        waiting, ended = len(self._state.queue.waiting), self._state.queue.ended.get(ticket, "")
        status = TicketStatus(state="ended", position=0, waiting=waiting, reason=ended, since=0.0)
        return reply({**status})

    def queue_cancel(self, request: ControlRequest, ticket: str) -> ControlReply:
        ended = self._tickets.cancel(ticket, request.peer.uid)
        return reply({"ticket": ended.id, "name": ended.name})

    # --- tenants ---

    def tenants(self, everything: bool) -> ControlReply:
        records = [
            record
            for record in self._state.ledger.entries.values()
            if record.state != "none"
            or ((everything or record.is_remote) and not release.is_over(record))
        ]
        named = tenant_names.with_names(records, self._state)
        lookups = RowLookups(self._state.node, self._state.ledger)
        return (tenant_status(record, self._state, lookups) for record in named), {}

    def tenant(self, name: str) -> ControlReply:
        return self._shown(self._find(name))

    def why(self, name: str) -> ControlReply:
        report, holders = why.explain_memory(self._find(name), self._state)
        return holders, {"why": report}

    def set(self, name: str, reset: bool, **values: str | None) -> ControlReply:
        change = {
            field.replace("_", "-"): text for field, text in values.items() if text is not None
        }
        if reset == bool(change):
            raise MalformedRequest(f"set needs reset, or some of {', '.join(protocol.SET_FIELDS)}")
        record, state = self._find(name), self._state
        job = partial(resize.change_tenant, record, change, state, reset=reset)
        return self._shown(state.decide.run(job))

    def pause(self, name: str, reason: str) -> ControlReply:
        record = self._find(name)
        self._freeze(lambda: self._control.pause(record, reason))
        return self._shown(record)

    def resume(self, name: str) -> ControlReply:
        record = self._find(name)
        self._freeze(lambda: self._control.resume(record))
        return self._shown(record)

    def stop(self, name: str, signal: str, timeout: int, reason: str) -> ControlReply:
        record = self._find(name)
        row = tenant_status(record, self._state)
        after: list[Intervention] = []

        def job() -> None:
            self._control.stop(record, reason, Signals[f"SIG{signal}"], timeout)
            after.extend(interventions(record, self._state.ledger))  # it may end at once

        self._freeze(job)
        return reply({"tenant": {**row, "interventions": after}})

    def _freeze(self, job: Callable[[], None]) -> None:
        """Have the freeze thread do `job`; what it decided is recorded before the answer.

        The job waits for no record, so that a full disk or a busy decide thread delays no freeze.
        Its caller does: what was answered holds if the daemon is killed now.
        """
        self._state.freezing.run(job)
        self._state.decide.run(lambda: None)

    def evict(self, name: str, reason: str, hold: bool, force: bool) -> ControlReply:
        record = self._find(name)
        self._evictions.evict(record.key, reason, held=hold, forced=force)
        return self._shown(record)

    def restore(self, name: str, reason: str) -> ControlReply:
        record = self._find(name)
        self._evictions.restore(record.key, reason)
        return self._shown(record)

    def move(self, name: str, card: str, reason: str) -> ControlReply:
        record = self._find(name)
        self._evictions.move(record.key, card, reason)
        return self._shown(record)

    def _find(self, name: str) -> TenantRecord:
        return find_tenant(name, self._state)

    def _shown(self, record: TenantRecord) -> ControlReply:
        """Answer with a tenant as it is now; it may have ended meanwhile."""
        now = self._state.ledger.entries.get(record.key, record)
        return reply({"tenant": tenant_status(now, self._state)})

    # --- what a scheduler of Kubernetes has allocated ---

    def allocation(self, card: str, memory_bytes: int) -> ControlReply:
        state = self._state
        folder = scheduled.allocation_folder(
            card, memory_bytes, state.node.loaded(), state.node.config
        )
        return reply({"folder": folder})

    def claim_prepare(
        self,
        uid: str,
        namespace: str,
        name: str,
        pods: Sequence[str],
        devices: Sequence[ClaimDevice],
        parameters: Mapping[str, str],
    ) -> ControlReply:
        parts = tuple(ClaimedDevice(**device) for device in devices)
        keys = dict(sorted(parameters.items()))
        claim = ClaimRecord(uid, namespace, name, tuple(dict.fromkeys(pods)), parts, keys)
        return reply({**scheduled.prepare(claim, self._state)})

    def claim_pods(self, uid: str, pods: Sequence[str]) -> ControlReply:
        scheduled.set_pods(uid, tuple(dict.fromkeys(pods)), self._state.ledger)
        return reply()

    def claim_unprepare(self, uid: str) -> ControlReply:
        scheduled.unprepare(uid, self._state.node, self._state.ledger)
        return reply()

    def claims(self) -> ControlReply:
        return scheduled.claim_rows(self._state.ledger), {}

    # --- the node and its cards ---

    def cards(self) -> ControlReply:
        return card_rows(self._state), {}

    def card_policy(self, card: str, policy: str | None) -> ControlReply:
        named = self._named(card)
        source = ValueSource("option", "policy")
        chosen = "" if policy is None else str(read("policy", source, policy, KEYS).value)
        reload.set_card_policy(named.uuid, chosen, self._state)
        return self._card(named.uuid)

    def card_cordon(self, card: str, reason: str | None) -> ControlReply:
        named = self._named(card)
        reload.cordon_card(named, reason or "", self._state.node, self._state.ledger)
        return self._card(named.uuid)

    def card_uncordon(self, card: str) -> ControlReply:
        named = self._named(card)
        reload.uncordon_card(named, self._state.node, self._state.ledger)
        return self._card(named.uuid)

    def _named(self, card: str) -> Card:
        """Return the card of a request; NoSuchCard."""
        return find_card(card, self._state.node.loaded().cards)

    def _card(self, uuid: str) -> ControlReply:
        """Answer with the card as it is now."""
        return reply({"card": next(card_rows(self._state, uuid))})

    def status(self) -> ControlReply:
        return reply({**status_row(self._state)})

    def metrics(self) -> ControlReply:
        state = self._state
        rows: Iterator[Mapping[str, Any] | bytes] = chain(
            ({"card": row} for row in card_rows(state)),
            metrics.tenant_packets(state),
            # The last: a tenant that is released meanwhile is in it, also if it was among the
            # others.
            ({"ended": row} for row in metrics.ended_rows(state.tenants)),
        )
        return rows, {"node": metrics.daemon_metrics(state)}

    def history(self, name: str, since: float, after: int) -> ControlReply:
        return event_page(name, since, after, self._state), {}

    def reload(self) -> ControlReply:
        return reply({"changed": reload.reload_config(self._state)})

    def node_setting(self, key: str, value: str, source: str) -> ControlReply:
        if not source:
            reload.reset_node_setting(key, self._state.node, self._state.ledger)
        elif not value:
            raise MalformedRequest("value is missing")
        else:
            reload.set_node_setting(key, value, source, self._state.node, self._state.ledger)
        with suppress(NoDriver):  # kept in node.driver_fault, which status shows
            take_over_changed_driver(self._state.node)
        return reply()
