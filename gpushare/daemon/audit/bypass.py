# SPDX-License-Identifier: Apache-2.0
"""Limits tenants that bypass the launch gate to their part of the card, if the operator chose so.

With `audit: {gate_bypass: freeze}`, the driver's figures of a tenant are compared with what it may
have of that card. policy/escalation.py decides for which part of the time it runs, and the freezer
runs the duty cycle. Of several cards, the smallest part counts.

`look` is the truth thread's; any thread may call `resumed`.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from gpushare.daemon.compute import scheduler_sync
from gpushare.daemon.core.log import log
from gpushare.daemon.freezer.freezer import Freezer
from gpushare.daemon.observe.compute_usage import CHECKED
from gpushare.daemon.policy import escalation
from gpushare.daemon.state import ComputeCap, ComputeUsage, DaemonState, TenantOnCard
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError

CHOICE: Final = "freeze"
_SPARED_NS: Final = 60 * 10**9  # after an operator resumed it
_AGAIN_NS: Final = 5 * 10**9  # after a duty cycle failed
_ACTIVE_PERCENT: Final = 1.0
_ACTIVE_WAITS: Final = 0.01
_ROUND_TIMES: Final = 1.3  # of a tenant in a duty cycle, of which the driver measures little
_ROUND_PERCENT: Final = 1.0


@dataclass(frozen=True)
class _BypassCase:
    identity: tuple[int, int]  # of its first process: a container may be started once more
    state: escalation.DutyState


class BypassControl:
    """Judges the tenants of `state`; `freezer` runs their duty cycles."""

    def __init__(self, state: DaemonState, freezer: Freezer) -> None:
        self._state = state
        self._freezer = freezer
        self._cases: dict[TenantOnCard, _BypassCase] = {}
        self._on: frozenset[str] = frozenset()  # tenants that were put into a duty cycle
        self._spared: dict[str, int] = {}  # by key, until when
        self._events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def look(self, now_ns: int | None = None) -> None:
        """Judge by the last sample of the compute usage. `now_ns` is CLOCK_MONOTONIC.

        An error ends all duty cycles and does not end the sampling.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        try:
            cases, view = self._judged(now_ns)
        except Exception:  # noqa: BLE001 - see above
            log("driver-sample-failed", "error", traceback=traceback.format_exc())
            cases, view = {}, {}
        self._cases = cases
        self._state.observed.caps = MappingProxyType(view)
        self._act(view)

    def resumed(self, key: str) -> None:
        """Note that an operator resumes tenant `key`."""
        self._events.put((key, _SPARED_NS))

    def _judged(
        self, now_ns: int
    ) -> tuple[dict[TenantOnCard, _BypassCase], dict[TenantOnCard, ComputeCap]]:
        self._read_events(now_ns)
        cases: dict[TenantOnCard, _BypassCase] = {}
        view: dict[TenantOnCard, ComputeCap] = {}
        for record in self._state.ledger.entries.values():
            if not self._may_be_limited(record, now_ns):
                continue
            for allocation in record.allocations:
                place, identity = (record.key, allocation.uuid), (record.pid, record.starttime)
                before = self._cases.get(place)
                same = before is not None and before.identity == identity
                state = before.state if before is not None and same else escalation.DutyState()
                sample = self._sample(place, engaged=state.engaged)
                state = escalation.next_duty(now_ns, sample, state)
                cases[place] = _BypassCase(identity, state)
                if state.engaged and sample is not None:
                    measured = self._state.observed.compute_of(*place).driver_percent
                    view[place] = ComputeCap(sample.may_percent, state.part, measured or 0.0)
        return cases, view

    def _read_events(self, now_ns: int) -> None:
        while not self._events.empty():
            key, duration_ns = self._events.get()
            self._spared[key] = now_ns + duration_ns
            self._on -= {key}
        self._spared = {key: until for key, until in self._spared.items() if until > now_ns}

    def _may_be_limited(self, record: TenantRecord, now_ns: int) -> bool:
        state = self._state
        return (
            record.state == "bound"
            and record.shared
            and state.config.terms_of(record.namespace).compute == CHOICE
            and self._spared.get(record.key, 0) <= now_ns
            and not state.is_frozen(record.key)
        )

    def _sample(self, place: TenantOnCard, *, engaged: bool) -> escalation.DutySample | None:
        key, uuid = place
        compute = self._state.observed.compute_of(key, uuid)
        if compute.lately_percent is None or compute.driver_percent is None or compute.silent:
            return None
        found = scheduler_sync.shares_on_card(uuid, self._state)
        if key not in found:
            return None  # the ledger has changed meanwhile
        may = escalation.allowed_percent(
            found[key],
            [
                (share, _is_active(self._state.observed.compute_of(other, uuid)))
                for other, share in found.items()
                if other != key
            ],
        )
        if may is None:
            return None
        return escalation.DutySample(
            compute.lately_percent,
            may,
            _goes_round(compute, engaged=engaged),
            compute.driver_ns,
        )

    def _act(self, view: Mapping[TenantOnCard, ComputeCap]) -> None:
        runs: dict[str, ComputeCap] = {}
        for (key, _), cap in view.items():
            if key not in runs or cap.runs < runs[key].runs:
                runs[key] = cap
        submit, freezer = self._state.freezing.submit, self._freezer
        for key, cap in runs.items():
            # A freeze that failed meanwhile has ended its duty cycle.
            if not freezer.set_duty_cycle(key, cap.runs):
                submit(partial(self._begin, key, cap))
        for key in self._on - runs.keys():
            submit(partial(self._end, key))
        self._on = frozenset(runs)

    def _begin(self, key: str, cap: ComputeCap) -> None:
        why = f"bypasses the launch gate: limited to {cap.may_percent:.0f} % by freezing"
        try:
            self._freezer.start_duty_cycle(key, why, cap.runs, lambda why: self._lost(key, why))
        except (UserError, OSError) as error:
            log("duty-cycle-failed", "error", tenant=key, error=str(error))
            self._events.put((key, _AGAIN_NS))

    def _end(self, key: str) -> None:
        try:
            self._freezer.release(key, "duty")
        except (UserError, OSError) as error:
            log("duty-cycle-failed", "error", tenant=key, error=str(error))

    def _lost(self, key: str, why: str) -> None:
        """Note that a duty cycle ended by itself; callable from any thread."""
        log("duty-cycle-failed", "error", tenant=key, error=why)
        self._events.put((key, _AGAIN_NS))
        self._state.freezing.submit(lambda: self._end(key))


def _is_active(compute: ComputeUsage) -> bool:
    """Whether a tenant uses the card, or wants to."""
    got, waits = compute.got[CHECKED], compute.throttled[CHECKED]
    return (got or 0.0) >= _ACTIVE_PERCENT or (waits or 0.0) >= _ACTIVE_WAITS


def _goes_round(compute: ComputeUsage, *, engaged: bool) -> bool:
    if not engaged:
        return compute.bypassed
    claimed, measured = compute.claimed_percent, compute.driver_percent or 0.0
    return (
        claimed is None
        or measured > claimed * _ROUND_TIMES + _ROUND_PERCENT
        or (compute.ungated_percent or 0.0) > _ROUND_PERCENT
    )
