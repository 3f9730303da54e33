# SPDX-License-Identifier: Apache-2.0
"""The compute scenario: a tenant with a share of a card gets that share, and no more.

One tenant requests a fixed share, the other none, and both keep the card busy. The usage of the
first is measured twice: by gpushare (charged at the gate) and by the driver (NVML's utilization of
its processes). Both figures must match the request, the driver's as far as its samples allow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, TypeAlias

from gpushare.protocol.rows import chance_percent
from gpushare.quota.size import exact_size
from gpushare.verify import ScenarioSteps
from gpushare.verify.runners import ProbeFailed, ProbeTenant

#: CardComputeUsage of the protocol, as --json prints it.
ChargedTime: TypeAlias = dict[str, Any]

MEMORY_BYTES: Final = 1 << 30  # quota of each tenant: a context, and some more
TOLERANCE: Final = 2.0  # points
_TOGETHER: Final = 90.0  # least percent of the card that both use together without other tenants
_WINDOW: Final = "10s"  # the averaging window of the daemon that the driver's figure also has
_WINDOW_SECONDS: Final = 10.0
_WARM_SECONDS: Final = (
    2.0  # until the driver's figure for its last second covers only the work of the test
)
_LATE_SECONDS: Final = 5.0  # delay of all samples together on a busy machine
_MOST_WINDOWS: Final = 6
_KERNEL_NS: Final = 1_000_000


@dataclass(frozen=True)
class ComputeTrial:
    """One trial: `percent` of card `index`; `others`: the card is used by others.

    `time_scale` is the factor by which a simulated card
    multiplies every duration: the scheduler's windows are longer by it, so the test takes longer.
    """

    index: int
    percent: int
    others: bool = False
    time_scale: float = 1.0

    @property
    def windows(self) -> int:
        """The number of samples of ten seconds each."""
        return max(1, min(round(self.time_scale), _MOST_WINDOWS))


@dataclass(frozen=True)
class MeasuredShare:
    """The usage of a tenant in percent of the card, as measured by gpushare and by the driver."""

    name: str
    charged: float | None
    driver: float | None

    def __str__(self) -> str:
        """Return `train 29.9 % (driver: 30.0 %)`."""
        return f"{self.name} {_percent(self.charged)} (driver: {_percent(self.driver)})"


@dataclass(frozen=True)
class Outcome:
    """The result of a trial: first the tenant with the share, then the other one."""

    trial: ComputeTrial
    measured: tuple[MeasuredShare, ...]
    trouble: str = ""  # why these figures do not measure an enforced share

    @property
    def error(self) -> float | None:
        """The error of what was charged in points; None: nothing was."""
        charged = self.measured[0].charged
        return None if charged is None else abs(charged - self.trial.percent)

    @property
    def driver_tolerance(self) -> float:
        """How many points the driver's figure may be off."""
        return TOLERANCE + chance_percent(self.trial.percent, self.seconds)

    @property
    def is_met(self) -> bool:
        """Whether both figures are those of the share."""
        driver = self.measured[0].driver
        is_seen = driver is None or abs(driver - self.trial.percent) <= self.driver_tolerance
        return is_seen and self.error is not None and self.error <= TOLERANCE

    @property
    def together(self) -> float | None:
        """The usage of all tenants together."""
        known = [percent.charged for percent in self.measured if percent.charged is not None]
        return sum(known) if len(known) == len(self.measured) else None

    @property
    def seconds(self) -> float:
        """For how long the usage was measured."""
        return self.trial.windows * _WINDOW_SECONDS

    @property
    def figures(self) -> dict[str, float | None]:
        """The figures for --json."""
        return {
            "card": self.trial.index,
            "requested_percent": self.trial.percent,
            "charged_percent": self.measured[0].charged,
            "driver_percent": self.measured[0].driver,
            "error_points": self.error,
            "aggregate_percent": self.together,
            "seconds": self.seconds,
            "time_scale": self.trial.time_scale,
        }


@dataclass
class ComputeScenario(ScenarioSteps):
    """Two tenants keep one card busy, and the usage of each is measured."""

    trial: ComputeTrial = ComputeTrial(0, 30)

    def run(self) -> bool:
        """Run the scenario; return whether all checks passed."""
        title = f"{self.trial.percent} % of a card's compute, next to a tenant that requests none"
        self.report.title(title)
        try:
            with ExitStack() as stack:
                tenants = [*self._started(stack)]
                outcome = self._measured(tenants)
        except ProbeFailed as error:
            self.report.check("every tenant responds", False, error)
        else:
            self._check(outcome)
        return self.report.passed

    def _started(self, stack: ExitStack) -> Iterator[ProbeTenant]:
        quota = {"memory": exact_size(MEMORY_BYTES), "devices": str(self.trial.index)}
        share = {"cores": str(self.trial.percent), "policy": "fixed-share"}
        yield self.started(stack, "share", quota | share)
        yield self.started(stack, "rest", quota)

    def _measured(self, tenants: list[ProbeTenant]) -> Outcome:
        """Return the usage of each tenant while all of them keep the card busy."""
        seconds = self.trial.windows * _WINDOW_SECONDS
        # No tenant may stop before the last sample.
        work_ns = round((_WARM_SECONDS + seconds + _LATE_SECONDS) * 1e9)
        self.report.say(f"kernels of 1 ms without a pause; usage of each in {seconds:.0f} s:")
        for tenant in tenants:
            tenant.ask("info")  # fails here if the tenant cannot work
        for tenant in tenants:
            tenant.tell(f"busy {_KERNEL_NS} {work_ns}")
        time.sleep(_WARM_SECONDS)
        samples = []
        for _ in range(self.trial.windows):
            time.sleep(_WINDOW_SECONDS)
            samples.append(self._sample(tenants))
        self.show("ps", "--wide")
        for tenant in tenants:
            answer = tenant.answer("busy")
            if answer["code"] != 0:
                raise ProbeFailed(f"{tenant.name}: {answer['result']}")
        return outcome(self.trial, [tenant.name for tenant in tenants], samples)

    def _sample(self, tenants: list[ProbeTenant]) -> list[ChargedTime]:
        """Return the compute usage of each tenant at one time."""
        rows = self.tenants()
        samples = []
        for tenant in tenants:
            if tenant.name not in rows:
                raise ProbeFailed(f"{tenant.name} is no longer listed")
            cards = {card["index"]: card["compute"] for card in rows[tenant.name]["cards"]}
            samples.append(cards[self.trial.index])
        return samples

    def _check(self, outcome: Outcome) -> None:
        percent = self.trial.percent
        for measured in outcome.measured:
            self.report.say(str(measured))
        off = "-" if outcome.error is None else f"{outcome.error:.1f} points"
        self.report.say(
            f"requested {percent} %, off by {off}; together {_percent(outcome.together)}"
        )
        share = outcome.measured[0]
        sampled = f", within {outcome.driver_tolerance:.0f} by the driver's samples"
        others = "; others used the card" if self.trial.others else ""
        self.report.check(
            f"{share.name} got its {percent} %: within {TOLERANCE:g} points by gpushare's figure"
            f"{'' if share.driver is None else sampled}",
            not outcome.trouble and outcome.is_met,
            outcome.trouble or f"{share}{others}",
            outcome.figures,
        )
        if not self.trial.others:
            self.report.check(
                f"nothing is lost: together they got {_TOGETHER:g} % or more",
                (outcome.together or 0.0) >= _TOGETHER,
                f"{_percent(outcome.together)} together",
            )


def outcome(
    trial: ComputeTrial, names: Sequence[str], samples: Sequence[Sequence[ChargedTime]]
) -> Outcome:
    """Return the outcome of `samples`: one for each window, its tenants in the order of `names`."""
    measured = tuple(
        MeasuredShare(
            name,
            _mean([usage["cores_used"][_WINDOW] for usage in of_one]),
            _mean([usage["driver_utilization"] for usage in of_one]),
        )
        for name, of_one in zip(names, zip(*samples, strict=True), strict=True)
    )
    return Outcome(trial, measured, _trouble([sample[0] for sample in samples]))


def _trouble(share: Sequence[ChargedTime]) -> str:
    """Return why the figures do not measure an enforced share, empty if they do."""
    if any(usage["cores_source"] != "gate" for usage in share):
        return (
            "its gate was open, or nothing was charged. Check the scheduler with gpushare doctor "
            "and journalctl -u gpushared."
        )
    return "its work did not complete (hung)" if any(usage["is_hung"] for usage in share) else ""


def _mean(figures: Sequence[float | None]) -> float | None:
    """Return the mean, None if any figure is unknown."""
    known = [figure for figure in figures if figure is not None]
    return fmean(known) if known and len(known) == len(figures) else None


def _percent(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.1f} %"
