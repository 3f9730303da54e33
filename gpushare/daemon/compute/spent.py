# SPDX-License-Identifier: Apache-2.0
"""What each tenant got of each of its cards over the last second, the last ten, the last sixty.

Where the gate counts, the scheduler's charge is what it got, and what it wanted beyond that is what
it waited. An open gate counts nothing (who has a card alone pays nothing for being measured), and
whole cards have none: there the driver's own figure stands in, in whole percent. Where a scheduler
should have been heard of, and was not for `_SILENT_NS`, nobody knows.

The driver's figure is held against the charge too. A tenant that it saw do clearly more than it was
charged has work that goes round the gate: a program with a driver library of its own.

`look` is the truth thread's; `view` is replaced, never changed, so any thread may read it.
"""

from __future__ import annotations

import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpushare import abi
from gpushare.daemon.audit.view import View
from gpushare.daemon.log import log
from gpushare.daemon.pages.grant import Gate
from gpushare.daemon.pages.status import Waits
from gpushare.daemon.store.ledger import Entry, Holding, Ledger
from gpushare.daemon.tenants import Pages, Tenants

WINDOWS: Final = (1, 10, 60)  # seconds
GATE: Final = "gate"
DRIVER: Final = "driver"

_SECOND: Final = 10**9
_SILENT_NS: Final = 5 * abi.GATE_STALE_NS  # two looks of ours
_APART_NS: Final = _SECOND // 5  # of the points that are kept, and the least that says something
LATELY: Final = 2  # seconds: one has a figure of a real card, or none
CHECKED: Final = 10  # seconds, and of them must have been counted
_CHECKED_LEAST_NS: Final = 9 * _SECOND
_MORE_PERCENT: Final = 10.0  # what the driver saw above what was charged, and
_MORE_TIMES: Final = 1.3  # how many times as much: less may be rounding, and sampling

_MODES: Final = {
    abi.GATE_OPEN: "open",
    abi.GATE_METERED: "metered",
    abi.GATE_WINDOW: "window",
    abi.GATE_CLOSED: "closed",
}
_NO_FIGURES: Final[Mapping[int, float | None]] = MappingProxyType(dict.fromkeys(WINDOWS))
_NO_WAITS: Final = Waits()


@dataclass(frozen=True)
class Spent:
    """What a tenant got of one card, as of the last look.

    `got` is percent of the card and `throttled` the part of the time in which it wanted the card
    and did not have it, 0..1, both by seconds; None: not known. `source` says whose figures they
    are: GATE, DRIVER, or "" where there are none. `driver_percent` is the driver's over ten
    seconds. `forced` and `waited_ns` are what the tenant's processes claim, and those that this
    daemon saw before them; the other counts are the scheduler's.
    """

    source: str = ""
    gate: str = ""  # its mode; "" where there is none
    got: Mapping[int, float | None] = field(default_factory=lambda: _NO_FIGURES)
    throttled: Mapping[int, float | None] = field(default_factory=lambda: _NO_FIGURES)
    charged_ns: int = 0
    windows: int = 0
    overruns: int = 0
    forced: int = 0
    waited_ns: int = 0
    hung: bool = False
    silent: bool = False  # the scheduler should have been heard of, and was not
    driver_percent: float | None = None
    lately_percent: float | None = None  # the driver's over two seconds
    bypassed: bool = False
    got_ns: int = 0  # of the card's time, by whoever could say; since this daemon looks
    active: float = 0.0  # seconds since the epoch: when it was last seen to use the card


@dataclass(frozen=True)
class _Point:
    """Sums up to a moment."""

    at_ns: int
    known_ns: int = 0  # time in which it was known what the tenant got:
    got_ns: int = 0
    missed_ns: int = 0  # wanted, and not had
    counted_ns: int = 0  # time in which the gate counted
    driver_ns: int = 0  # what the tenant got as the driver says


class _Course:
    """One tenant on one card over the last minute."""

    def __init__(self, at_ns: int, waits: Mapping[int, Waits] | None = None) -> None:
        """Begin at `at_ns`; `waits` is what an earlier daemon had heard of already."""
        self._points = [_Point(at_ns)]
        self._last = self._points[0]
        self._gate: Gate | None = None
        self._figure_ns = at_ns
        self._waits = dict(waits or {})
        self._waited = _NO_WAITS
        self._active = time.time()

    def hear(self, waits: Mapping[int, Waits]) -> None:
        """Note what the processes say, by their number; who says less than before is another."""
        for number, now in waits.items():
            before = self._waits.get(number, _NO_WAITS)
            if now.throttled_ns < before.throttled_ns or now.forced < before.forced:
                before = _NO_WAITS
            self._waited += now - before
        self._waits = dict(waits)

    def look(self, at_ns: int, gate: Gate | None, percent: int | None, *, says: bool) -> Spent:
        """Return what there is to say at `at_ns`.

        `gate` is None for a whole card; `percent` the driver's figure, where there is a new one;
        `says` whether the driver has such figures of this card.
        """
        is_open = gate is None or gate.mode == abi.GATE_OPEN
        silent = gate is not None and not is_open and at_ns - gate.heartbeat_ns > _SILENT_NS
        source = ("" if silent else GATE) if not is_open else (DRIVER if says else "")
        got_ns = self._last.got_ns
        self._step(at_ns, gate, percent, source)
        self._keep()
        if percent or self._last.got_ns > got_ns:
            self._active = time.time()
        since = {seconds: self._since(seconds) for seconds in WINDOWS}
        checked = since[CHECKED]
        driver = _percent(self._last.driver_ns - checked.driver_ns, at_ns - checked.at_ns)
        driver = driver if says else None
        lately = self._since(LATELY)
        lately_ns = self._last.driver_ns - lately.driver_ns
        return Spent(
            source=source,
            gate="" if gate is None else _MODES.get(gate.mode, ""),
            got={one: self._got(since[one]) for one in WINDOWS} if source else _NO_FIGURES,
            throttled=(
                {one: self._throttled(since[one]) for one in WINDOWS} if source else _NO_FIGURES
            ),
            charged_ns=0 if gate is None else gate.charged_ns,
            windows=0 if gate is None else gate.windows,
            overruns=0 if gate is None else gate.overruns,
            forced=self._waited.forced,
            waited_ns=self._waited.throttled_ns,
            hung=gate is not None and gate.hung and not silent,
            silent=silent,
            driver_percent=driver,
            lately_percent=_percent(lately_ns, at_ns - lately.at_ns) if says else None,
            bypassed=self._is_bypassed(checked, driver),
            got_ns=self._last.got_ns,
            active=self._active,
        )

    def _step(self, at_ns: int, gate: Gate | None, percent: int | None, source: str) -> None:
        """Add what came since the last look."""
        last, before = self._last, self._gate
        step_ns = at_ns - last.at_ns
        charged_ns = wanted_ns = 0
        if gate is not None and before is not None:
            # A scheduler that was started again counts from 0.
            charged_ns = max(0, gate.charged_ns - before.charged_ns)
            wanted_ns = max(0, gate.wanted_ns - before.wanted_ns)
        driver_ns = self._driver_ns(at_ns, percent)
        counts = source == GATE
        all_counted = counts and before is not None and before.mode != abi.GATE_OPEN
        missed_ns = min(step_ns, max(0, wanted_ns - charged_ns))
        self._last = _Point(
            at_ns,
            last.known_ns + (step_ns if source else 0),
            last.got_ns + (charged_ns if counts else driver_ns if source else 0),
            last.missed_ns + (missed_ns if counts else 0),
            last.counted_ns + (step_ns if all_counted else 0),
            last.driver_ns + driver_ns,
        )
        self._gate = gate

    def _driver_ns(self, at_ns: int, percent: int | None) -> int:
        """Return the card's time that a new figure of the driver stands for.

        A look may find none: a real card makes one a second at the latest.
        """
        if percent is None:
            return 0
        since_ns = min(at_ns - self._figure_ns, _SECOND)
        self._figure_ns = at_ns
        return since_ns * percent // 100

    def _keep(self) -> None:
        points, last = self._points, self._last
        if last.at_ns - points[-1].at_ns >= _APART_NS:
            points.append(last)
            del points[: self._place(max(WINDOWS))]

    def _since(self, seconds: int) -> _Point:
        """Return the point that is so long ago, the oldest where there is none."""
        return self._points[self._place(seconds)]

    def _place(self, seconds: int) -> int:
        wanted_ns = self._last.at_ns - seconds * _SECOND
        return max(0, bisect_right(self._points, wanted_ns, key=lambda point: point.at_ns) - 1)

    def _got(self, since: _Point) -> float | None:
        return _percent(self._last.got_ns - since.got_ns, self._last.known_ns - since.known_ns)

    def _throttled(self, since: _Point) -> float | None:
        last = self._last
        percent = _percent(last.missed_ns - since.missed_ns, last.known_ns - since.known_ns)
        return None if percent is None else percent / 100

    def _is_bypassed(self, since: _Point, driver: float | None) -> bool:
        counted_ns = self._last.counted_ns - since.counted_ns
        charged = _percent(self._last.got_ns - since.got_ns, counted_ns)
        if driver is None or charged is None or counted_ns < _CHECKED_LEAST_NS:
            return False
        return driver > max(charged + _MORE_PERCENT, charged * _MORE_TIMES)


class Spending:
    """Looks at the gates of all tenants; `view` is by (tenant key, card uuid)."""

    def __init__(self, ledger: Ledger, tenants: Tenants) -> None:
        self.view: Mapping[tuple[str, str], Spent] = MappingProxyType({})
        self._ledger = ledger
        self._tenants = tenants
        self._courses: dict[tuple[str, str], _Course] = {}

    def of(self, key: str, uuid: str) -> Spent:
        """Return what tenant `key` got of card `uuid`."""
        return self.view.get((key, uuid), Spent())

    def look(self, truth: View, now_ns: int | None = None) -> None:
        """Look once, after the driver was: `truth` is what it said. `now_ns` is CLOCK_MONOTONIC.

        Whatever goes wrong makes everything unknown and is no end of looking: nobody else looks.
        """
        try:
            self._look(truth, time.monotonic_ns() if now_ns is None else now_ns)
        except Exception:  # noqa: BLE001 - see above
            log("look-failed", "error", traceback=traceback.format_exc())
            self.view = MappingProxyType({})

    def _look(self, truth: View, at_ns: int) -> None:
        view: dict[tuple[str, str], Spent] = {}
        for entry in self._ledger.entries.values():
            for number, holding in enumerate(entry.holdings):
                found = self._look_at(entry, number, holding, truth, at_ns)
                if found is not None:
                    place = entry.key, holding.uuid
                    view[place] = found
                    _tell(entry, holding.uuid, self.view.get(place, Spent()), found)
        self._courses = {place: self._courses[place] for place in view}
        self.view = MappingProxyType(view)

    def _look_at(
        self, entry: Entry, number: int, holding: Holding, truth: View, at_ns: int
    ) -> Spent | None:
        """Return what `entry` got of its card `number`; None where its pages are gone."""
        place = entry.key, holding.uuid
        course = self._courses.get(place)
        gate = None
        if not holding.whole:
            pages = self._tenants.pages.get(entry.key)
            found = None if pages is None else pages.look(_gate_and_waits(number), None)
            if pages is None or found is None:
                return None
            gate, waits = found
            if course is None:
                course = self._courses[place] = _Course(at_ns, waits if pages.adopted else None)
            course.hear(waits)
        if course is None:
            course = self._courses[place] = _Course(at_ns)
        card = truth.cards.get(holding.uuid)
        percent = None if truth.stale else truth.utilisation.get(place)
        says = not truth.stale and card is not None and card.utilisation is not None
        return course.look(at_ns, gate, percent, says=says or percent is not None)


def _gate_and_waits(number: int) -> Callable[[Pages], tuple[Gate, Mapping[int, Waits]] | None]:
    def read(pages: Pages) -> tuple[Gate, Mapping[int, Waits]] | None:
        if number >= pages.grant.card_count:
            return None
        return pages.grant.gate(number), pages.status.waits(number)

    return read


def _tell(entry: Entry, uuid: str, before: Spent, now: Spent) -> None:
    """Log what began."""
    who = {"tenant": entry.key, "name": entry.title, "card": uuid}
    if now.bypassed and not before.bypassed:
        charged = now.got[CHECKED]
        log("gate-bypassed", "warning", **who, charged=charged, driver=now.driver_percent)
    if now.hung and not before.hung:
        log("tenant-hung", "warning", **who)


def _percent(part: int, whole: int) -> float | None:
    return None if whole < _APART_NS else min(100.0, 100 * part / whole)
