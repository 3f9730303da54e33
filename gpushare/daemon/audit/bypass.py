# SPDX-License-Identifier: Apache-2.0
"""Freezes a tenant that bypasses the launch gate, if the operator chose so.

With `audit: {gate_bypass: freeze}`, the driver's figures of a tenant are compared with what it may
have of that card. One that bypasses its gate and gets clearly more, several samples in a row, is
frozen until an operator resumes it: a frozen tenant computes nothing, so no figure can thaw it.

`look` is the truth thread's; any thread may call `resumed`.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from gpushare.daemon.core.log import log
from gpushare.daemon.freezer.freezer import Freezer
from gpushare.daemon.limits import scheduler_sync
from gpushare.daemon.observe.compute_usage import CHECKED
from gpushare.daemon.observed import ComputeUsage, TenantOnCard
from gpushare.daemon.policy import escalation
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError

CHOICE: Final = "freeze"
_AGAIN_NS: Final = 5 * 10**9  # after a freeze failed
_ACTIVE_PERCENT: Final = 1.0
_ACTIVE_WAITS: Final = 0.01

#: The first process of a tenant, because a container may be started once more; and how many samples
#: in a row were above its part.
_Looks = tuple[tuple[int, int], int]


class BypassControl:
    """Judges the tenants of `state`, and has `freezer` freeze them."""

    def __init__(self, state: DaemonState, freezer: Freezer) -> None:
        self._state = state
        self._freezer = freezer
        self._looks: dict[TenantOnCard, _Looks] = {}
        self._spared: dict[str, int] = {}  # by key, until when
        self._events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def look(self, now_ns: int | None = None) -> None:
        """Judge by the last sample of the compute usage. `now_ns` is CLOCK_MONOTONIC.

        An error does not end the sampling.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        try:
            for record, why in self._judged(now_ns):
                self._state.freezing.submit(partial(self._freeze, record, why))
        except Exception:  # noqa: BLE001 - see above
            log("driver-sample-failed", "error", traceback=traceback.format_exc())
            self._looks = {}

    def resumed(self, key: str) -> None:
        """Note that an operator resumes tenant `key`."""
        self._events.put((key, escalation.SPARED_NS))

    def _judged(self, now_ns: int) -> Iterator[tuple[TenantRecord, str]]:
        """Yield each tenant that is to be frozen, and why."""
        self._read_events(now_ns)
        before, self._looks = self._looks, {}
        for record in self._state.ledger.entries.values():
            if not self._may_be_frozen(record, now_ns):
                continue
            for allocation in record.allocations:
                place, identity = (record.key, allocation.uuid), (record.pid, record.starttime)
                excess = self._excess(place)
                if not excess:
                    continue
                known, looks = before.get(place, (identity, 0))
                looks = looks + 1 if known == identity else 1
                self._looks[place] = identity, looks
                if looks == escalation.LOOKS:
                    yield record, excess

    def _read_events(self, now_ns: int) -> None:
        while not self._events.empty():
            key, duration_ns = self._events.get()
            self._spared[key] = now_ns + duration_ns
        self._spared = {key: until for key, until in self._spared.items() if until > now_ns}

    def _may_be_frozen(self, record: TenantRecord, now_ns: int) -> bool:
        state = self._state
        return (
            record.state == "bound"
            and record.shared
            and state.node.config.terms_of(record.namespace).compute == CHOICE
            and self._spared.get(record.key, 0) <= now_ns
            and not state.ledger.is_frozen(record.key)
        )

    def _excess(self, place: TenantOnCard) -> str:
        """Return what a tenant gets of a card beyond its part, past its gate; empty: nothing."""
        key, uuid = place
        compute = self._state.observed.compute_of(key, uuid)
        if compute.lately_percent is None or compute.silent or not compute.gate_bypassed:
            return ""
        found = scheduler_sync.shares_on_card(uuid, self._state)
        if key not in found:
            return ""  # the ledger has changed meanwhile
        may = escalation.allowed_percent(
            found[key],
            [
                (share, _is_active(self._state.observed.compute_of(other, uuid)))
                for other, share in found.items()
                if other != key
            ],
        )
        if may is None or compute.lately_percent <= may + escalation.MORE_PERCENT:
            return ""
        return (
            f"bypasses the launch gate: the driver measured {compute.lately_percent:.0f} % of the "
            f"card, and it may have {may:.0f} %"
        )

    def _freeze(self, record: TenantRecord, why: str) -> None:
        tenant = {"tenant": record.key, "id": record.id, "name": record.title}
        try:
            self._freezer.freeze(record.key, "audit", why)
            log("gate-bypass-frozen", "warning", **tenant, reason=why)
        except (UserError, OSError) as error:
            log("tenant-freeze-failed", "error", **tenant, error=str(error))
            self._events.put((record.key, _AGAIN_NS))


def _is_active(compute: ComputeUsage) -> bool:
    """Whether a tenant uses the card, or wants to."""
    got, waits = compute.cores_used[CHECKED], compute.throttled[CHECKED]
    return (got or 0.0) >= _ACTIVE_PERCENT or (waits or 0.0) >= _ACTIVE_WAITS


# --- a container that uses a card in MPS mode without its MPS server ---
#
# None of the server's limits hold for it, so it is treated as one that is over its quota:
# `audit.over_quota` says how. It is acted on once for each process; an operator may resume it.

_ACTIONS: Final = frozenset({"freeze", "kill"})


class MpsBypass:
    """Acts on tenants that `state.node.mps` reports; any thread may call `act`."""

    def __init__(self, state: DaemonState, freezer: Freezer) -> None:
        self._state = state
        self._freezer = freezer

    def act(self, key: str, pid: int) -> None:
        """Freeze or kill a tenant, if that is the action for it; the caller has logged it."""
        record = self._state.ledger.entries.get(key)
        choice = "" if record is None else self._state.node.over_quota_action(record)
        if choice not in _ACTIONS:
            return
        why = f"process {pid} uses the card without its MPS server"

        def freeze() -> None:
            self._freezer.freeze(key, "audit", why)

        def kill() -> None:
            self._freezer.kill(key, why)

        self._state.freezing.submit(lambda: self._try(key, freeze if choice == "freeze" else kill))

    def _try(self, key: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except (UserError, OSError) as error:
            log("over-quota-action-failed", "error", tenant=key, step="freeze", error=str(error))
