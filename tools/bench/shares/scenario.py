# SPDX-License-Identifier: Apache-2.0
"""The tenants that share a card, their quotas, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tools.bench.result import Result

from .card_time import Served
from .load import Load

READ_EVERY_MS: Final = 10  # how often it is read what each process was served; card time


@dataclass(frozen=True)
class TenantSpec:
    """One tenant of a scenario: what it asks, as a quota says it, and what it does.

    `shared` tenants are judged by how near they come to their `cores`; the others, which leave a
    part of it to others or take what is left, are not.
    """

    name: str
    load: Load
    cores: int
    policy: str = "burst-share"
    class_: str = "offline"
    shared: bool = True


@dataclass
class Run:
    """What was seen of one set of tenants. Moments are ns of real time."""

    start: float
    end: float
    slow: float
    served: dict[str, Served]  # by tenant
    latencies_ms: dict[str, list[float]] = field(default_factory=dict)  # of requests, in card time
    #: Until the first kernel after an idle phase was done.
    resumed_ms: dict[str, list[float]] = field(default_factory=dict)
    scheduler_cpu: float = 0.0  # of one core; 0 on the bare driver

    def share(self, tenant: str) -> float:
        """Return the tenant's part of the card's time, 0..1."""
        return self.served[tenant].share(self.start, self.end)

    @property
    def late_ms(self) -> float:
        """By how much the machine itself was late at most with a reading; card time."""
        gap = max(served.longest_gap(self.start, self.end) for served in self.served.values())
        return max(0.0, gap / 1e6 / self.slow - READ_EVERY_MS)

    def busy(self) -> float:
        """Return the part of the card's time in which work was served, 0..1."""
        return sum(map(self.share, self.served))


@dataclass
class ScenarioRuns:
    """The runs of one scenario, side by side in time."""

    scenario: Scenario
    native: Run
    gpushare: Run
    alone: Run | None  # one tenant on the bare driver, with the card to itself

    def result(
        self,
        what: str,
        unit: str,
        figure_of: Callable[[Run], float],
        *,
        limit: float | None = None,
        at_least: bool = False,
        beside_native: bool = True,
    ) -> Result:
        """Return `figure_of` both runs."""
        value = figure_of(self.gpushare)
        native = figure_of(self.native) if beside_native else None
        return Result(
            f"{self.scenario.name}: {what}",
            unit,
            value,
            native,
            None if native is None else value - native,
            limit,
            absolute=True,
            at_least=at_least,
        )


Judge: TypeAlias = Callable[[ScenarioRuns], list[Result]]


@dataclass(frozen=True)
class Scenario:
    """A row of the table, or rather the few rows of its figures.

    `alone` is the tenant that has the card to itself in a run of its own. `slow` multiplies all
    times, where the machine's own jitter would hide the result.
    """

    name: str
    title: str
    tenants: tuple[TenantSpec, ...]
    judges: tuple[Judge, ...]
    alone: str = ""
    slow: int = 8
    profile: str = "h200"

    def tenant(self, name: str) -> TenantSpec:
        """Return the tenant of that name."""
        return next(tenant for tenant in self.tenants if tenant.name == name)


def shared(scenario: Scenario) -> Sequence[TenantSpec]:
    """Return the tenants that are judged by their share."""
    return [tenant for tenant in scenario.tenants if tenant.shared]
