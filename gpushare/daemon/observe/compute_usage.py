# SPDX-License-Identifier: Apache-2.0
"""The compute of each tenant on each of its cards, over the last second, the last ten and sixty.

Where the gate counts, the scheduler's charge is what it got, and what it wanted beyond that is what
it waited. An open gate counts nothing (a tenant alone on a card pays nothing for being measured),
and whole cards have none: there the driver's own figure stands in, in whole percent. Where a
scheduler should have written and has not for `_SILENT_NS`, nothing is known.

The driver's figure is compared with the tenant's own claims: clearly more, beyond what its sampling
explains, is work that bypasses the gate. What others claim never matters for that. A tenant also
bypasses the gate if it submits work while the gate is closed, or if it used the card and had no
window: claims can be forged, and a tenant that claims more than its share gets no windows.

Where the driver's figure and the charge differ, the charge is corrected: what a tenant got beyond
its charge counts as its own, and the tenants that were charged for it get it back
(policy.py).

All of this is the truth thread's.
"""

from __future__ import annotations

import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import add, sub
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.core.log import log
from gpushare.daemon.observed import (
    NO_FIGURES,
    WINDOWS,
    ComputeUsage,
    Observations,
    TenantOnCard,
    UsageView,
)
from gpushare.daemon.pages.status_page import MOST_COUNTED, GateWaits
from gpushare.daemon.pages.tenants import Gate, Tenants
from gpushare.daemon.policy import CORRECTED_PERCENT, charge_corrections
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.protocol.rows import chance_percent

GATE: Final = "gate"
DRIVER: Final = "driver"

_SECOND: Final = 10**9
_SILENT_NS: Final = 5 * abi.GATE_STALE_NS  # two looks of ours
_APART_NS: Final = _SECOND // 5  # of the points that are kept, and the least that says something
LATELY: Final = 2  # seconds: one has a figure of a real card, or none
CHECKED: Final = 10  # seconds, and of them must have been counted
_SPANS: Final = (CHECKED, max(WINDOWS))  # where much is wrong it shows sooner
_CHECKED_LEAST_NS: Final = 9 * _SECOND
_MORE_PERCENT: Final = 10.0  # the driver's measurement above the claims, and
_MORE_TIMES: Final = 1.3  # how many times as much: less may be rounding
_CORRECTED_LEAST_NS: Final = 3 * _SECOND  # for which the figures are known
_SEND_NS: Final = 2 * _SECOND  # a correction applies for some seconds after it was sent

_MODES: Final = {
    abi.GATE_OPEN: "open",
    abi.GATE_METERED: "metered",
    abi.GATE_WINDOW: "window",
    abi.GATE_CLOSED: "closed",
}
_NO_WAITS: Final = GateWaits()


class _Sums(NamedTuple):
    """Sums up to a moment, or what they have grown between two."""

    at_ns: int
    known_ns: int = 0  # time in which it was known what the tenant got:
    got_ns: int = 0
    missed_ns: int = 0  # wanted, and not had
    counted_ns: int = 0  # time in which the gate counted
    driver_ns: int = 0  # the tenant's use as the driver says
    claimed_ns: int = 0  # the claims of its processes
    windows: int = 0  # that were opened for it
    ungated_ns: int = 0  # of that, with work that was submitted at a closed gate

    def plus(self, grown: _Sums) -> _Sums:
        return _Sums(*map(add, self, grown))

    def since(self, before: _Sums) -> _Sums:
        return _Sums(*map(sub, self, before))

    # As percent of the time that it is known for:

    def got(self) -> float | None:
        return _percent(self.got_ns, self.known_ns)

    def driver(self) -> float | None:
        return _percent(self.driver_ns, self.at_ns)

    def claimed(self) -> float | None:
        return _percent(self.claimed_ns, self.counted_ns)

    def ungated(self) -> float | None:
        return _percent(self.ungated_ns, self.counted_ns)


class _Course:
    """One tenant on one card over the last minute."""

    def __init__(self, at_ns: int, waits: Mapping[int, GateWaits]) -> None:
        """Begin at `at_ns`; `waits` is what an earlier daemon had read already."""
        self._points = [_Sums(at_ns)]
        self._last = self._points[0]
        self._gate: Gate | None = None
        self._figure_ns = at_ns
        self._waits = dict(waits)
        self._waited = _NO_WAITS
        self._active = time.time()

    def add_waits(self, waits: Mapping[int, GateWaits]) -> None:
        """Note what the processes claim, by their number; one with less than before is another."""
        for number, now in waits.items():
            before = self._waits.get(number, _NO_WAITS)
            if now.throttled_ns < before.throttled_ns or now.forced < before.forced:
                before = _NO_WAITS
            sums = zip(self._waited, now, before, strict=True)
            self._waited = GateWaits(*(min(all_ + n - b, MOST_COUNTED) for all_, n, b in sums))
        self._waits = dict(waits)

    def look(
        self, at_ns: int, gate: Gate | None, percent: int | None, *, says: bool, active: bool
    ) -> ComputeUsage:
        """Return what there is to say at `at_ns`.

        `gate` is None for a whole card; `percent` the driver's figure, where there is a new one;
        `says` whether the driver has such figures of this card; `active` whether it has any of use.
        """
        is_open = gate is None or gate.mode == abi.GATE_OPEN
        silent = gate is not None and not is_open and at_ns - gate.heartbeat_ns > _SILENT_NS
        source = ("" if silent else GATE) if not is_open else (DRIVER if says else "")
        got_ns = self._last.got_ns
        self._step(at_ns, gate, percent, source)
        if at_ns - self._points[-1].at_ns >= _APART_NS:
            self._points.append(self._last)
            del self._points[: self._place(max(WINDOWS))]
        if active or percent or self._last.got_ns > got_ns:
            self._active = time.time()
        grown = {seconds: self._grown(seconds) for seconds in WINDOWS}
        checked = grown[CHECKED]
        return ComputeUsage(
            source=source,
            gate="" if gate is None else _MODES.get(gate.mode, ""),
            cores_used={span: grown[span].got() for span in WINDOWS} if source else NO_FIGURES,
            throttled=({span: _part(grown[span]) for span in WINDOWS} if source else NO_FIGURES),
            charged_ns=0 if gate is None else gate.charged_ns,
            windows=0 if gate is None else gate.windows,
            overruns=0 if gate is None else gate.overruns,
            forced_launches=self._waited.forced,
            throttled_ns=self._waited.throttled_ns,
            is_hung=gate is not None and gate.hung and not silent,
            silent=silent,
            driver={span: grown[span].driver() for span in WINDOWS} if says else NO_FIGURES,
            ungated_percent=checked.ungated(),
            claimed_percent=checked.claimed(),
            charged_percent=checked.got() if source == GATE else None,
            is_compared=says and source == GATE and checked.at_ns >= _CORRECTED_LEAST_NS,
            lately_percent=self._grown(LATELY).driver() if says else None,
            owed_percent=_owed(grown) if says and source == GATE else 0.0,
            gate_bypassed=says and self._is_bypassed(grown),
            got_ns=self._last.got_ns,
            last_active=self._active,
        )

    def _step(self, at_ns: int, gate: Gate | None, percent: int | None, source: str) -> None:
        """Add what came since the last look."""
        last, before = self._last, self._gate
        step_ns = at_ns - last.at_ns
        charged_ns, demand_ns, claimed_ns, ungated_ns, windows = (
            # A scheduler that was started again counts from 0.
            max(0, getattr(gate, name) - getattr(before, name)) if gate and before else 0
            for name in ("charged_ns", "demand_ns", "claimed_ns", "ungated_ns", "windows")
        )
        driver_ns = 0
        if percent is not None:  # a real card makes a new figure once a second at the latest
            driver_ns = min(at_ns - self._figure_ns, _SECOND) * percent // 100
            self._figure_ns = at_ns
        counts = source == GATE
        all_counted = counts and before is not None and before.mode != abi.GATE_OPEN
        missed_ns = min(step_ns, max(0, demand_ns - charged_ns))
        self._last = last.plus(
            _Sums(
                step_ns,
                step_ns if source else 0,
                charged_ns if counts else driver_ns if source else 0,
                missed_ns if counts else 0,
                step_ns if all_counted else 0,
                driver_ns,
                claimed_ns,
                windows,
                ungated_ns,
            )
        )
        self._gate = gate

    def _grown(self, seconds: int) -> _Sums:
        """Return what has come in so long a time, or since the oldest point."""
        return self._last.since(self._points[self._place(seconds)])

    def _place(self, seconds: int) -> int:
        wanted_ns = self._last.at_ns - seconds * _SECOND
        return max(0, bisect_right(self._points, wanted_ns, key=lambda point: point.at_ns) - 1)

    def _is_bypassed(self, grown: Mapping[int, _Sums]) -> bool:
        checked = grown[CHECKED]
        if checked.counted_ns < _CHECKED_LEAST_NS:
            return False
        driver = checked.driver()
        if driver is None:
            return False
        gate = self._gate
        # Then it cannot have launched anything since, whatever it claims.
        is_closed = gate is not None and gate.mode == abi.GATE_CLOSED and not gate.hung
        has_no_window = is_closed and not checked.windows
        return (
            any(_is_above_its_claims(grown[span]) for span in _SPANS)
            or min(driver, checked.ungated() or 0.0) > _MORE_PERCENT
            or (driver > _MORE_PERCENT and has_no_window)
        )


def _owed(grown: Mapping[int, _Sums]) -> float:
    """Return by how many percent the driver's figure is above the charge, and not by chance."""
    for span in _SPANS:
        driver, charged = grown[span].driver(), grown[span].got()
        if driver is None or charged is None or driver - charged <= CORRECTED_PERCENT:
            continue
        seconds = grown[span].at_ns / _SECOND
        if driver - charged > CORRECTED_PERCENT + chance_percent(charged, seconds):
            return driver - charged
    return 0.0


def _is_above_its_claims(grown: _Sums) -> bool:
    driver, claimed = grown.driver(), grown.claimed()
    if driver is None or claimed is None or driver <= claimed + _MORE_PERCENT:
        return False
    most = max(claimed + _MORE_PERCENT, claimed * _MORE_TIMES)
    return driver > most + chance_percent(claimed, grown.at_ns / _SECOND)


class ComputeMeter:
    """Samples the gates of all tenants into `observed.compute`.

    `corrected` is called when the corrections of the charges have changed, and again from time to
    time while there are any.
    """

    def __init__(
        self,
        ledger: Ledger,
        tenants: Tenants,
        observed: Observations,
        corrected: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._tenants = tenants
        self._observed = observed
        self._corrected = corrected
        self._courses: dict[TenantOnCard, _Course] = {}
        self._corrections: dict[TenantOnCard, int] = {}
        self._sent_ns = 0

    def look(self, now_ns: int | None = None) -> None:
        """Sample once, after the driver was sampled. `now_ns` is CLOCK_MONOTONIC.

        An error makes everything unknown and does not end the sampling: nothing else samples.
        """
        try:
            self._look(self._observed.usage, time.monotonic_ns() if now_ns is None else now_ns)
        except Exception:  # noqa: BLE001 - see above
            log("driver-sample-failed", "error", traceback=traceback.format_exc())
            self._observed.compute = MappingProxyType({})

    def _look(self, usage: UsageView, at_ns: int) -> None:
        records, view = self._ledger.entries, dict[TenantOnCard, ComputeUsage]()
        for record in records.values():
            for number, allocation in enumerate(record.allocations):
                compute = self._look_at(record, number, allocation, usage, at_ns)
                if compute is not None:
                    view[record.key, allocation.uuid] = compute
        view = _with_corrections(view)
        for (key, uuid), compute in view.items():
            _log_changes(records[key], uuid, self._observed.compute_of(key, uuid), compute)
        self._courses = {place: self._courses[place] for place in view}
        self._observed.compute = MappingProxyType(view)
        self._send_corrections(at_ns)

    def _send_corrections(self, at_ns: int) -> None:
        before = self._corrections
        self._corrections = {
            place: compute.correction_percent
            for place, compute in self._observed.compute.items()
            if compute.correction_percent
        }
        if self._corrections != before or (self._corrections and at_ns - self._sent_ns >= _SEND_NS):
            self._sent_ns = at_ns
            self._corrected()

    def _look_at(
        self,
        record: TenantRecord,
        number: int,
        allocation: CardAllocation,
        usage: UsageView,
        at_ns: int,
    ) -> ComputeUsage | None:
        """Return what `record` got of its card `number`; None where its pages are gone."""
        gate: Gate | None = None
        waits: Mapping[int, GateWaits] = {}
        known_waits = waits
        if not allocation.whole:
            pages = self._tenants.pages.get(record.key)
            if pages is None or number >= pages.grant.card_count:
                return None
            gone: tuple[Gate | None, Mapping[int, GateWaits]] = (None, {})
            gate, waits = pages.look(
                lambda pages: (pages.grant.gate(number), pages.status.waits(number)), gone
            )
            if gate is None:
                return None
            known_waits = waits if pages.adopted else known_waits
        place = record.key, allocation.uuid
        course = self._courses.get(place)
        if course is None:
            course = self._courses[place] = _Course(at_ns, known_waits)
        course.add_waits(waits)
        card = usage.cards.get(allocation.uuid)
        percent = None if usage.stale else usage.utilization.get(place)
        says = not usage.stale and card is not None and card.utilization is not None
        active = not usage.stale and usage.is_active(*place)
        return course.look(at_ns, gate, percent, says=says or percent is not None, active=active)


def _with_corrections(
    view: Mapping[TenantOnCard, ComputeUsage],
) -> dict[TenantOnCard, ComputeUsage]:
    """Compare the charges of each card's tenants with the driver's figures."""
    corrected = dict(view)
    for uuid in {uuid for _, uuid in view}:
        compared = {
            key: compute
            for (key, card), compute in view.items()
            if card == uuid and compute.is_compared
        }
        is_bypassed = any(compute.gate_bypassed for compute in compared.values())
        corrections = charge_corrections(
            {
                key: (
                    compute.owed_percent,
                    (compute.driver_percent or 0.0) - (compute.cores_used[CHECKED] or 0.0),
                )
                for key, compute in compared.items()
            }
        )
        for key, percent in corrections.items():
            compute = compared[key]
            if not compute.gate_bypassed and abs(percent) > _MORE_PERCENT:
                # The charge contains another tenant's work, or lacks what another one claims.
                compute = replace(compute, source=DRIVER, cores_used=compute.driver)
            overcharged = is_bypassed and percent < -_MORE_PERCENT
            corrected[key, uuid] = replace(
                compute, correction_percent=round(percent), overcharged=overcharged
            )
    return corrected


def _log_changes(record: TenantRecord, uuid: str, before: ComputeUsage, now: ComputeUsage) -> None:
    tenant = {**record.named, "card": uuid}
    if now.gate_bypassed and not before.gate_bypassed:
        figures = {"charged": now.cores_used[CHECKED], "driver": now.driver_percent}
        log("gate-bypass-detected", "warning", **tenant, **figures)
    if now.is_hung and not before.is_hung:
        log("tenant-hung", "warning", **tenant)


def _percent(part: int, whole: int) -> float | None:
    return None if whole < _APART_NS else min(100.0, 100 * part / whole)


def _part(grown: _Sums) -> float | None:
    percent = _percent(grown.missed_ns, grown.known_ns)
    return None if percent is None else percent / 100
