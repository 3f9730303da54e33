# SPDX-License-Identifier: Apache-2.0
"""Scenarios with clients that wait for each batch of kernels, as most programs do.

Such a client leaves the card idle while it is at the host, so no policy gives it the whole card:
`Judged.bound` says how busy exact shares can keep it.
"""

import math
from dataclasses import dataclass, replace

from tools.model import measure
from tools.model.bound import SynchronisingClient, bound
from tools.model.clock import MS, SECOND, US
from tools.model.hardware import CardTiming
from tools.model.policy import ShareStruct
from tools.model.programs import POLLS_NS, SLEEPS_NS, inference, synchronising, training
from tools.model.scenarios import ModelResult, ModelScenario, Runs, play

DEPTHS = (1, 2, 8)
KERNELS = (20 * US, 100 * US, 500 * US, 2 * MS)
SECONDS = 5
SPREAD = 0.3  # sigma of the logarithm of a kernel's length


def _length(ns: int) -> str:
    return f"{ns // US} us" if ns < MS else f"{ns // MS} ms"


@dataclass(frozen=True)
class AlikeScenario(ModelScenario):
    """Tenants that differ in their shares alone: batches of `depth` kernels of `ns`."""

    depth: int = 1
    ns: int = 0


def _alike(
    key: str, shares: tuple[int, ...], depth: int, ns: int, *, sleeps: bool = False,
    switch_us: int = 30, pause_us: int = 0,
) -> AlikeScenario:  # fmt: skip
    """Tenants that do the same; those that sleep are woken up by the driver, others poll."""
    capped = key.endswith("f")
    parts = f"{'fixed ' * capped}{'/'.join(map(str, shares))}"
    what = f"{parts}, {_length(ns)}, synchronised after {depth}"
    wake_ns = SLEEPS_NS if sleeps else POLLS_NS
    if pause_us:
        wake_ns = (pause_us * US - 35 * US, pause_us * US + 5 * US)
    tenants = tuple(
        Runs(
            chr(ord("a") + at),
            synchronising(ns, depth, wake_ns=wake_ns, sigma=SPREAD, seed=at),
            ShareStruct(10 * each, capped=capped),
        )
        for at, each in enumerate(shares)
    )
    what += ", sleeping" * sleeps + f" for {pause_us} us" * bool(pause_us)
    timing = CardTiming()
    if switch_us != 30:
        what += f", {switch_us} us a switch"
        timing = CardTiming(preempt_ns=switch_us * US, drained_ns=switch_us * US)
    return AlikeScenario(key, what, SECONDS, tenants, timing=timing, depth=depth, ns=ns)


PAIRS = tuple(
    _alike(f"P{depth}-{ns // US}", (30, 70), depth, ns) for depth in DEPTHS for ns in KERNELS
) + tuple(
    _alike(f"P{depth}-{ns // US}f", (30, 70), depth, ns)
    for depth, ns in ((1, 20 * US), (8, 100 * US))
)
FOURS = tuple(
    _alike(f"Q{depth}-{ns // US}", (10, 20, 30, 40), depth, ns)
    for depth, ns in ((1, 20 * US), (8, 20 * US), (8, 100 * US))
)
SLEEPING = tuple(
    _alike(f"S{depth}-{ns // US}", (30, 70), depth, ns, sleeps=True)
    for depth, ns in ((1, 20 * US), (8, 20 * US), (1, 100 * US), (8, 100 * US), (1, 500 * US))
)
SWITCHES = tuple(
    _alike(
        f"{key}{depth}-{ns // US}-{pause_us}-{switch_us}", shares, depth, ns,
        sleeps=True, switch_us=switch_us, pause_us=pause_us,
    )
    for switch_us, pause_us, key, shares, depth, ns in (
        *((us, 85, "S", (30, 70), 1, 200 * US) for us in (0, 30, 160)),
        *((us, 85, "T", (25, 25, 25, 25), 8, 20 * US) for us in (0, 30, 160)),
        (30, 200, "S", (30, 70), 1, 200 * US),
        (30, 200, "T", (25, 25, 25, 25), 8, 20 * US),
        (160, 450, "S", (30, 70), 1, 500 * US),
    )
)  # fmt: skip

_STEADY = Runs("steady", training(100 * US), ShareStruct(700))
MIXED = (
    *(
        ModelScenario(
            f"X{depth}-{ns // US}",
            f"30/70, {_length(ns)} synchronised after {depth}, next to kernels of 100 us",
            SECONDS,
            (Runs("a", synchronising(ns, depth), ShareStruct(300)), _STEADY),
        )
        for depth, ns in ((1, 20 * US), (8, 20 * US), (8, 100 * US), (1, 2 * MS))
    ),
    ModelScenario(
        "Y", "30/70, synchronised: 20 us after 8, next to 200 us after 8", SECONDS,
        (
            Runs("a", synchronising(20 * US, 8), ShareStruct(300)),
            Runs("b", synchronising(200 * US, 8), ShareStruct(700)),
        ),
    ),
    ModelScenario(
        "Y1", "30/70, synchronised: 20 us after 1, next to 2 ms after 1", SECONDS,
        (
            Runs("a", synchronising(20 * US, 1), ShareStruct(300)),
            Runs("b", synchronising(2 * MS, 1), ShareStruct(700)),
        ),
    ),
    *(
        ModelScenario(
            key, f"{what}30/70, bound by the host: 50 us of every 0.5 ms", SECONDS,
            tuple(
                Runs(
                    name,
                    synchronising(50 * US, 1, host_ns=440 * US, seed=at),
                    ShareStruct(permille, capped=bool(what)),
                )
                for at, (name, permille) in enumerate((("a", 300), ("b", 700)))
            ),
        )
        for key, what in (("Z", ""), ("Zf", "fixed "))
    ),
    *(
        ModelScenario(
            f"W{us}", f"30/70, bound by the host: {us} us at a time, next to kernels of 100 us",
            SECONDS,
            (Runs("a", synchronising(us * US, 1, host_ns=440 * US), ShareStruct(300)), _STEADY),
        )
        for us in (50, 250)
    ),
    ModelScenario(
        "R", "burst-share 30, 40 requests/s of 3 ms, next to training with kernels of 100 us", 20,
        (
            Runs("requests", inference(40), ShareStruct(300), wants=False),
            Runs("training", training(100 * US), ShareStruct(700), wants=False),
        ),
    ),
)  # fmt: skip
SYNCHRONISING = {each.key: each for each in (*PAIRS, *FOURS, *SLEEPING, *SWITCHES, *MIXED)}


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
