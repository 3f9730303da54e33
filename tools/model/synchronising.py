# SPDX-License-Identifier: Apache-2.0
"""Scenarios with clients that wait for each batch of kernels, as most programs do.

Such a client leaves the card idle while it is at the host, so no policy gives it the whole card:
`Judged.bound` says how busy exact shares can keep it.
"""

import math
from dataclasses import dataclass, replace

from tools.model import measure
from tools.model.bound import SynchronisingClient, bound
from tools.model.clock import SECOND, US
from tools.model.hardware import CardTiming
from tools.model.policy import ShareStruct
from tools.model.programs import POLLS_NS, SLEEPS_NS, synchronising, training
from tools.model.scenarios import ModelResult, ModelScenario, Runs, play
from tools.model.tenant import Program

SECONDS = 5
SPREAD = 0.3  # sigma of the logarithm of a kernel's length


@dataclass(frozen=True)
class AlikeScenario(ModelScenario):
    """Tenants that differ in their shares alone: batches of `depth` kernels of `ns`."""

    depth: int = 1
    ns: int = 0


def _alike(
    shares: tuple[int, ...],
    depth: int,
    us: int,
    *,
    capped: bool = False,
    wake_ns: tuple[int, int] = POLLS_NS,
    timing: CardTiming | None = None,
) -> AlikeScenario:
    tenants = tuple(
        Runs(
            chr(ord("a") + at),
            synchronising(us * US, depth, wake_ns=wake_ns, sigma=SPREAD, seed=at),
            ShareStruct(10 * each, capped=capped),
        )
        for at, each in enumerate(shares)
    )
    return AlikeScenario(SECONDS, tenants, timing=timing or CardTiming(), depth=depth, ns=us * US)


def _lending(
    shares: tuple[int, ...], depth: int, us: int, pause_us: int, switch_us: int
) -> AlikeScenario:
    """Tenants that sleep for about `pause_us`, on a card whose switches take `switch_us`."""
    timing = CardTiming()
    if switch_us != 30:
        timing = CardTiming(preempt_ns=switch_us * US, drained_ns=switch_us * US)
    wake_ns = (pause_us * US - 35 * US, pause_us * US + 5 * US)
    return _alike(shares, depth, us, wake_ns=wake_ns, timing=timing)


def _beside_steady(program: Program) -> ModelScenario:
    steady = Runs("steady", training(100 * US), ShareStruct(700))
    return ModelScenario(SECONDS, (Runs("a", program, ShareStruct(300)), steady))


def _at_the_host(us: int, seed: int = 0) -> Program:
    return synchronising(us * US, 1, host_ns=440 * US, seed=seed)


def _both_at_the_host(*, capped: bool) -> ModelScenario:
    tenants = (
        Runs(name, _at_the_host(50, seed), ShareStruct(permille, capped=capped))
        for seed, (name, permille) in enumerate((("a", 300), ("b", 700)))
    )
    return ModelScenario(SECONDS, tuple(tenants))


PAIR, FOUR = (30, 70), (25, 25, 25, 25)
SYNCHRONISING = {
    "P1-20": _alike(PAIR, 1, 20),
    "P8-20": _alike(PAIR, 8, 20),
    "P1-100": _alike(PAIR, 1, 100),
    "P8-100": _alike(PAIR, 8, 100),
    "P8-100f": _alike(PAIR, 8, 100, capped=True),
    "P1-2000": _alike(PAIR, 1, 2000),
    "Q8-20": _alike((10, 20, 30, 40), 8, 20),
    "S1-20": _alike(PAIR, 1, 20, wake_ns=SLEEPS_NS),
    "S8-100": _alike(PAIR, 8, 100, wake_ns=SLEEPS_NS),
    "S1-200-85-0": _lending(PAIR, 1, 200, 85, 0),
    "S1-200-85-160": _lending(PAIR, 1, 200, 85, 160),
    "S1-200-200-30": _lending(PAIR, 1, 200, 200, 30),
    "S1-500-450-160": _lending(PAIR, 1, 500, 450, 160),
    "T8-20-85-0": _lending(FOUR, 8, 20, 85, 0),
    "T8-20-85-160": _lending(FOUR, 8, 20, 85, 160),
    "T8-20-200-30": _lending(FOUR, 8, 20, 200, 30),
    "X1-20": _beside_steady(synchronising(20 * US, 1)),
    "X8-20": _beside_steady(synchronising(20 * US, 8)),
    "W50": _beside_steady(_at_the_host(50)),
    "W250": _beside_steady(_at_the_host(250)),
    "Z": _both_at_the_host(capped=False),
    "Zf": _both_at_the_host(capped=True),
}


@dataclass(frozen=True)
class Judged:
    """What became of a scenario, in percent of the card, and what could have."""

    alone: list[float]  # what each uses when it has the card to itself
    native: ModelResult
    gated: ModelResult
    mean_error: float  # over one second, from its share of what all of them used
    max_error: float
    bound: float | None  # how busy the card can be with exact shares; of tenants that are alike

    @property
    def of_native(self) -> float:
        """How busy the card was, in percent of what the same clients make of it without us."""
        return 100 * self.gated.busy / self.native.busy


def judge(scenario: ModelScenario, *, seconds: int = SECONDS) -> Judged:
    """Play it without a scheduler, with it, and each tenant alone."""
    native = play(scenario, gated=False, seconds=2)
    gated = play(scenario, seconds=seconds)
    alone = [
        play(replace(scenario, tenants=(each,)), gated=False, seconds=1).busy
        for each in scenario.tenants
    ]
    weights = [each.share.permille / 10 for each in scenario.tenants]
    end = gated.machine.clock.now
    mean, most = measure.ratio_errors(gated.machine.tenants, weights, SECOND, end)
    return Judged(alone, native, gated, mean, most, _bound(scenario, weights, alone))


def _bound(scenario: ModelScenario, weights: list[float], alone: list[float]) -> float | None:
    if not isinstance(scenario, AlikeScenario):
        return None
    mean = scenario.ns * math.exp(SPREAD**2 / 2)  # of a log-normal distribution
    clients = [
        SynchronisingClient.seen(weight, mean, scenario.depth, alone=percent / 100)
        for weight, percent in zip(weights, alone, strict=True)
    ]
    return 100 * bound(clients, scenario.timing.drained_ns)
