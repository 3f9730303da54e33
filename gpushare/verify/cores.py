# SPDX-License-Identifier: Apache-2.0
"""The scenario about compute: who asked for a part of a card gets that part, and no more.

One tenant asks for a fixed share, the other for none; both keep the card busy. What the first got
is told twice: by gpushare (charged at the gate), and by the driver (NVML's utilisation of its
processes, in whole percent). Both have to be what was asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, TypeAlias

from gpushare.quota.size import exact_size

from .stage import Stage
from .tenant import ProbeFailed, Tenant

#: CardSpent of the protocol, as --json prints it.
Spent: TypeAlias = dict[str, Any]

MEMORY_BYTES: Final = 1 << 30  # of each: a context, and room
TOLERANCE: Final = 2.0  # points
_TOGETHER: Final = 90.0  # percent of the card that both have at least, where nobody else is on it
_WINDOW: Final = "10s"  # of what the daemon keeps, the one that the driver's figure is over too
_WINDOW_SECONDS: Final = 10.0
_WARM_SECONDS: Final = 2.0  # until the driver's figure, of its last second, is of our work only
_LATE_SECONDS: Final = 5.0  # of all looks together, where the machine is busy
_MOST_WINDOWS: Final = 6
_KERNEL_NS: Final = 1_000_000


@dataclass(frozen=True)
class Trial:
    """What is tried: `percent` of card `index`, `alone` or not; `others` have had the card busy.

    `slow_motion` is what a simulated card multiplies every duration by: the windows of the
    scheduler are as much longer, so that it takes more time to see as many.
    """

    index: int
    percent: int
    alone: bool = False
    others: bool = False
    slow_motion: float = 1.0

    @property
    def windows(self) -> int:
        """How many times ten seconds are looked at."""
        return max(1, min(round(self.slow_motion), _MOST_WINDOWS))


@dataclass(frozen=True)
class Got:
    """What a tenant got of the card in percent: as gpushare counted, and as the driver did."""

    name: str
    counted: float | None
    driver: float | None

    def __str__(self) -> str:
        """Return `train 29.9 % (the driver says 30.0 %)`."""
        return f"{self.name} {_percent(self.counted)} (the driver says {_percent(self.driver)})"


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: who asked for the share first, then the other, if there was one."""

    trial: Trial
    got: tuple[Got, ...]
    trouble: str = ""  # why these are no figures of a share that is held

    @property
    def error(self) -> float | None:
        """By how many points the worse of both figures is off; None: nothing was counted."""
        share = self.got[0]
        if share.counted is None:
            return None
        figures = [share.counted, *([] if share.driver is None else [share.driver])]
        return max(abs(figure - self.trial.percent) for figure in figures)

    @property
    def together(self) -> float | None:
        """What all of them got."""
        known = [got.counted for got in self.got if got.counted is not None]
        return sum(known) if len(known) == len(self.got) else None

    @property
    def figures(self) -> dict[str, float | None]:
        """The same for --json."""
        return {
            "card": self.trial.index,
            "asked_percent": self.trial.percent,
            "got_percent": self.got[0].counted,
            "driver_percent": self.got[0].driver,
            "error_points": self.error,
            "aggregate_percent": self.together,
            "seconds": self.trial.windows * _WINDOW_SECONDS,
            "slow_motion": self.trial.slow_motion,
        }


@dataclass
class Cores(Stage):
    """Two tenants at work on one card, and what each got of it."""

    trial: Trial = Trial(0, 30)

    def run(self) -> bool:
        """Return whether all that was claimed held."""
        beside = "alone" if self.trial.alone else "beside one that asks for none"
        self.report.title(f"{self.trial.percent} % of a card's compute, {beside}")
        try:
            with ExitStack() as stack:
                tenants = [*self._started(stack)]
                outcome = self._worked(tenants)
        except ProbeFailed as error:
            self.report.check("every tenant answers", False, error)
        else:
            self._judged(outcome)
        return self.report.held

    def _started(self, stack: ExitStack) -> Iterator[Tenant]:
        quota = {"memory": exact_size(MEMORY_BYTES), "devices": str(self.trial.index)}
        share = {"cores": str(self.trial.percent), "policy": "fixed-share"}
        yield self.started(stack, "share", quota | share)
        if not self.trial.alone:
            yield self.started(stack, "rest", quota)

    def _worked(self, tenants: list[Tenant]) -> Outcome:
        """Return what each tenant got while all of them were at work."""
        looked = self.trial.windows * _WINDOW_SECONDS
        # Nobody may stop before the last look.
        work_ns = round((_WARM_SECONDS + looked + _LATE_SECONDS) * 1e9)
        self.report.say(f"kernels of 1 ms without a pause; what each gets in {looked:.0f} s:")
        for tenant in tenants:
            tenant.ask("info")  # one that cannot work says so here
        for tenant in tenants:
            tenant.tell(f"busy {_KERNEL_NS} {work_ns}")
        time.sleep(_WARM_SECONDS)
        looks = []
        for _ in range(self.trial.windows):
            time.sleep(_WINDOW_SECONDS)
            looks.append(self._spent(tenants))
        self.show("ps", "--wide")
        for tenant in tenants:
            answer = tenant.answer("busy")
            if answer["code"] != 0:
                raise ProbeFailed(f"{tenant.name}: {answer['result']}")
        return outcome(self.trial, [tenant.name for tenant in tenants], looks)

    def _spent(self, tenants: list[Tenant]) -> list[Spent]:
        """Return what each has got, all at one moment."""
        rows = self.tenants()
        found = []
        for tenant in tenants:
            if tenant.name not in rows:
                raise ProbeFailed(f"{tenant.name} is not among the containers any more")
            cards = {card["index"]: card["spent"] for card in rows[tenant.name]["cards"]}
            found.append(cards[self.trial.index])
        return found

    def _judged(self, found: Outcome) -> None:
        asked = self.trial.percent
        for got in found.got:
            self.report.say(str(got))
        off = "-" if found.error is None else f"{found.error:.1f} points"
        self.report.say(f"asked {asked} %, off by {off}; together {_percent(found.together)}")
        both = "" if found.got[0].driver is None else " and by the driver's"
        others = "; others were at work on the card" if self.trial.others else ""
        self.report.check(
            f"{found.got[0].name} got its {asked} %, within {TOLERANCE:g} points, by gpushare's "
            f"count{both}",
            not found.trouble and found.error is not None and found.error <= TOLERANCE,
            found.trouble or f"{found.got[0]}{others}",
            found.figures,
        )
        if not self.trial.alone and not self.trial.others:
            self.report.check(
                f"what it leaves is not lost: together they got {_TOGETHER:g} % or more",
                (found.together or 0.0) >= _TOGETHER,
                f"{_percent(found.together)} together",
            )


def outcome(trial: Trial, names: Sequence[str], looks: Sequence[Sequence[Spent]]) -> Outcome:
    """Return what `looks`, one for each window with the tenants in the order of `names`, say."""
    got = tuple(
        Got(
            name,
            _mean([spent["got"][_WINDOW] for spent in of_one]),
            _mean([spent["driver_percent"] for spent in of_one]),
        )
        for name, of_one in zip(names, zip(*looks, strict=True), strict=True)
    )
    return Outcome(trial, got, _trouble([look[0] for look in looks]))


def _trouble(share: Sequence[Spent]) -> str:
    """Return why the figures are none of a share that is held; empty where they may be."""
    if any(spent["source"] != "gate" for spent in share):
        return (
            "its gate was open, or nobody counted: is the scheduler running? "
            "see gpushare doctor, and journalctl -u gpushared"
        )
    return "its work never ended (hung)" if any(spent["hung"] for spent in share) else ""


def _mean(figures: Sequence[float | None]) -> float | None:
    """Return the mean; None where any is not known."""
    known = [figure for figure in figures if figure is not None]
    return fmean(known) if known and len(known) == len(figures) else None


def _percent(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.1f} %"
