# SPDX-License-Identifier: Apache-2.0
"""Operations on tenants: show them, and what an operator changes of one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Final

from gpushare import protocol
from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.lifecycle import bind, release
from gpushare.daemon.operator.resize import (
    OVER_QUOTA_KEY,
    reset_quota,
    set_over_quota_action,
    set_quota,
)
from gpushare.daemon.operator.run_state import RunControl, StopRequest
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    MalformedRequest,
    Operation,
    TenantNotFound,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views import status_rows, why
from gpushare.quota.errors import quoted

_SIGNALS: Final = {name: signal.Signals[f"SIG{name}"] for name in protocol.STOP_SIGNALS}
_MOST_REASON: Final = 256
_SWEEP_SECONDS: Final = 0.2


def _tenants(request: ControlRequest, state: DaemonState) -> ControlReply:
    everything = request.flag("all")
    if everything:  # also those that got no GPU, but for those that are no more
        release.sweep_refusals(state).wait(_SWEEP_SECONDS)
    entries = state.ledger.entries.values()
    records = [record for record in entries if everything or record.state != "none"]
    named = bind.with_names(records, state)
    lookups = status_rows.RowLookups(state)
    return (dict(status_rows.tenant_row(record, state, lookups)) for record in named), {}


def _tenant(request: ControlRequest, state: DaemonState) -> ControlReply:
    record = find_tenant(request.text("name"), state)
    return reply({"tenant": status_rows.tenant_row(record, state)})


def _why(request: ControlRequest, state: DaemonState) -> ControlReply:
    record = find_tenant(request.text("name"), state)
    report, holders = why.explain_memory(record, state)
    return (dict(row) for row in holders), {"why": report}


def _set(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    record = find_tenant(request.text("name"), state)
    if "reset" in request.fields:
        return _reset(record, request, state)
    change = {
        name.replace("_", "-"): request.text(name, 64)
        for name in protocol.SET_FIELDS
        if name in request.fields
    }
    if not change:
        raise MalformedRequest(f"set needs one of {', '.join(protocol.SET_FIELDS)}")
    on_over = change.pop(OVER_QUOTA_KEY, None)

    def apply() -> TenantRecord:
        current = _current(record, state)
        changed = set_quota(current, change, state) if change else current
        if on_over is not None:
            set_over_quota_action(changed, on_over, state)
        return changed

    return reply({"tenant": status_rows.tenant_row(state.decide.run(apply), state)})


def _reset(record: TenantRecord, request: ControlRequest, state: DaemonState) -> ControlReply:
    known = [name.replace("_", "-") for name in protocol.SET_FIELDS]
    listed = request.text("reset", 256)
    keys = [] if listed == protocol.RESET_ALL else listed.split(",")
    unknown = [key for key in keys if key not in known]
    if unknown or any(name in request.fields for name in protocol.SET_FIELDS):
        raise MalformedRequest(
            f"reset is {protocol.RESET_ALL} or some of {','.join(known)}, and cannot be combined "
            "with other fields"
        )
    return _now(state.decide.run(lambda: reset_quota(_current(record, state), keys, state)), state)


def _current(record: TenantRecord, state: DaemonState) -> TenantRecord:
    """Return the record as it is now; the decide thread's. TenantNotFound: it was released."""
    now = state.ledger.entries.get(record.key)
    if now is None or now.created != record.created:
        raise TenantNotFound(f"container {record.title} has exited", [])
    return now


class _RunOperations:
    """The operations that need the freezer, beside the state."""

    def __init__(self, control: RunControl) -> None:
        self._control = control

    def _run(self, job: Callable[[], None], state: DaemonState) -> None:
        """Have the freeze thread do `job`; what it decided is recorded before the answer.

        The job waits for no record, so that a full disk or a busy decide thread delays no freeze.
        Its caller does: what was answered holds if the daemon is killed now.
        """
        state.freezing.run(job)
        state.decide.run(lambda: None)

    def pause(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        request.root_only()
        record = find_tenant(request.text("name"), state)
        reason = request_reason(request)
        self._run(lambda: self._control.pause(record, reason), state)
        return _now(record, state)

    def resume(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        request.root_only()
        record = find_tenant(request.text("name"), state)
        self._run(lambda: self._control.resume(record), state)
        return _now(record, state)

    def stop(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        request.root_only()
        number = _SIGNALS.get(request.text("signal", 8))
        if number is None:
            raise MalformedRequest(f"signal is not one of {', '.join(_SIGNALS)}")
        timeout = request.number("timeout", 0, protocol.STOP_TIMEOUT_MAX_SECONDS)
        record = find_tenant(request.text("name"), state)
        row = status_rows.tenant_row(record, state)
        stop = StopRequest(number, timeout, request_reason(request))
        after: list[protocol.Intervention] = []

        def job() -> None:
            self._control.stop(record, stop)
            after.extend(status_rows.interventions(record, state))  # it may end at once

        self._run(job, state)
        return reply({"tenant": {**row, "interventions": after}})


def request_reason(request: ControlRequest) -> str:
    """Return the reason in a request, "" if there is none; MalformedRequest."""
    return request.text("reason", _MOST_REASON) if "reason" in request.fields else ""


def _now(record: TenantRecord, state: DaemonState) -> ControlReply:
    now = state.ledger.entries.get(record.key, record)  # it may have ended meanwhile
    return reply({"tenant": status_rows.tenant_row(now, state)})


def find_tenant(name: str, state: DaemonState) -> TenantRecord:
    """Return the one tenant that `name` means: its name, an end of it, or the start of its id.

    Users choose names, so no kind of match takes precedence over another: a name that is also the
    id of another tenant, or the end of its name, is ambiguous. If there is no match, it is the one
    tenant whose name, or an end of it, begins so.
    """
    records = bind.with_names(list(state.ledger.entries.values()), state)
    by_id = [record for record in records if name in {record.id, record.key}]
    by_id = by_id or [record for record in records if record.id.startswith(name)]
    by_name = [
        record for record in records if record.name == name or record.name.endswith(f"/{name}")
    ]
    found = list({record.key: record for record in (*by_id, *by_name)}.values())
    is_start = not found
    if is_start:
        found = [record for record in records if f"/{name}" in f"/{record.name}"]
    if len(found) == 1:
        return found[0]
    if not found:
        known = [record.title for record in records][:16]
        raise TenantNotFound(f"no container is named {quoted(name)}; see gpushare ps -a", known)
    titles = [record.name or record.id for record in found]
    what = "is the start of the names" if is_start else "is the name"
    if by_id and by_name:
        text = f"{quoted(name)} is the name of one container and the ID of another"
    elif len(set(titles)) < len(titles) or name in titles:
        text = f"{quoted(name)} {what} of several containers"
    else:
        raise TenantNotFound(f"{quoted(name)} {what} of several containers", titles[:16])
    listed = [f"{one.title} (ID {one.id[:12]}, key {one.key})" for one in found[:16]]
    raise TenantNotFound(f"{text}: {', '.join(listed)}. Use a key", [one.key for one in found[:16]])


def tenant_operations(control: RunControl) -> Mapping[str, Operation]:
    """Return the operations on tenants, by name."""
    run = _RunOperations(control)
    return {
        "tenants": Operation(_tenants),
        "tenant": Operation(_tenant),
        "why": Operation(_why),
        "set": Operation(_set, "request"),
        "pause": Operation(run.pause, "request"),
        "resume": Operation(run.resume, "request"),
        "stop": Operation(run.stop, "request"),
    }


# --- evict, restore and move; each waits until it is done ---


class _EvictionOperations:
    """The operations that need the evictions, beside the state."""

    def __init__(self, evictions: Evictions) -> None:
        self._evictions = evictions

    def evict(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        held, reason = request.flag("hold"), request_reason(request)
        return self._run(request, state, lambda key: self._evictions.evict(key, reason, held=held))

    def restore(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        reason = request_reason(request)
        return self._run(request, state, lambda key: self._evictions.restore(key, reason))

    def move(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        card, reason = request.text("card", 96), request_reason(request)
        return self._run(request, state, lambda key: self._evictions.move(key, card, reason))

    def _run(
        self, request: ControlRequest, state: DaemonState, step: Callable[[str], None]
    ) -> ControlReply:
        request.root_only()
        record = find_tenant(request.text("name"), state)
        step(record.key)
        now = state.ledger.entries.get(record.key, record)  # it may have ended meanwhile
        return reply({"tenant": status_rows.tenant_row(now, state)})


def eviction_operations(evictions: Evictions) -> Mapping[str, Operation]:
    """Return the operations on evictions, by name."""
    run = _EvictionOperations(evictions)
    return {
        "evict": Operation(run.evict, "create", is_slow=True),
        "restore": Operation(run.restore, "create", is_slow=True),
        "move": Operation(run.move, "create", is_slow=True),
    }
