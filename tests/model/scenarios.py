# SPDX-License-Identifier: Apache-2.0
"""Tenants to be looked at together, with a figure for each that one can be wrong about."""

from dataclasses import dataclass

from tests.model import measure
from tests.model.clock import MS, SECOND, US
from tests.model.machine import Machine
from tests.model.policy import Share
from tests.model.programs import all_reduce, idle, inference, on_and_off, training
from tests.model.tenant import Program, Tenant


@dataclass(frozen=True)
class Runs:
    """One tenant; `wants`: more than its share all the time, so that it is to get its share."""

    name: str
    program: Program
    share: Share
    processes: int = 1
    cards: tuple[int, ...] = (0,)
    wants: bool = True


@dataclass(frozen=True)
class Scenario:
    """Tenants, and for how long they are watched after the first second."""

    key: str
    what: str
    seconds: int
    tenants: tuple[Runs, ...]
    cards: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of it; percent of a card, and points of it."""

    got: dict[str, float]
    mean_error: float  # over one second, of the tenant that is worst off
    max_error: float
    busy: float  # the card had somebody's work
    p99: dict[str, float]  # milliseconds, of tenants that answer requests
    waited: dict[str, float]  # the longest, milliseconds
    decisions: float  # a second
    machine: Machine


def play(scenario: Scenario, *, gated: bool = True, seconds: int = 0) -> Outcome:
    """Run it in simulated time."""
    machine = Machine(cards=scenario.cards, gated=gated)
    for each in scenario.tenants:
        machine.tenant(
            each.name, each.program, each.share, processes=each.processes, cards=each.cards
        )
    start, end = SECOND, (1 + (seconds or scenario.seconds)) * SECOND
    machine.run(end / SECOND)
    pairs = list(zip(scenario.tenants, machine.tenants, strict=True))
    errors = [_errors(tenant, start, end) for each, tenant in pairs if each.wants]
    asked = [tenant for tenant in machine.tenants if tenant.latencies]
    return Outcome(
        got={tenant.name: measure.share(tenant, start, end) for tenant in machine.tenants},
        mean_error=max((mean for mean, _ in errors), default=0.0),
        max_error=max((most for _, most in errors), default=0.0),
        busy=100 - measure.idle(machine.on(0), start, end),
        p99={tenant.name: measure.percentile(tenant.latencies, 99) / MS for tenant in asked},
        waited={tenant.name: max(tenant.latencies) / MS for tenant in asked},
        decisions=sum(device.decisions for device in machine.devices) * SECOND / end,
        machine=machine,
    )


def _errors(tenant: Tenant, start: int, end: int) -> tuple[float, float]:
    each = [
        measure.error(tenant, tenant.share.permille / 10, start, end, card)
        for card in range(len(tenant.places))
    ]
    return max(mean for mean, _ in each), max(most for _, most in each)


def _burst(*permille: int) -> list[Share]:
    return [Share(each) for each in permille]


def _fixed(*permille: int) -> list[Share]:
    return [Share(each, capped=True) for each in permille]


def _all(programs: list[Program], shares: list[Share]) -> tuple[Runs, ...]:
    return tuple(
        Runs(chr(ord("a") + at), program, share)
        for at, (program, share) in enumerate(zip(programs, shares, strict=True))
    )


SMALL = training(100 * US)
LONG = training(5 * MS, sigma=0.3, per=40)
GRAPHS = training(30 * MS, sigma=0.05, per=10)
ONLINE = Runs("online", inference(40), Share(300, online=True), wants=False)
IDLE = Runs("idle", idle, Share(700, capped=True), wants=False)


def _comes_and_goes(greedy: Program) -> tuple[Runs, ...]:
    returning = on_and_off(SMALL, 300 * MS, 300 * MS)
    return (
        Runs("greedy", greedy, Share(300), wants=False),
        Runs("returns", returning, Share(700), wants=False),
    )


SCENARIOS = {
    scenario.key: scenario
    for scenario in (
        Scenario("A", "30/70, kernels of 100 us", 20, _all([SMALL] * 2, _burst(300, 700))),
        Scenario(
            "A3", "20/30/50, kernels of 100 us", 20, _all([SMALL] * 3, _burst(200, 300, 500))
        ),
        Scenario(
            "B", "fixed 10/20/30/40, kernels of 20 us, 200 us, 2 ms, 20 ms", 20,
            _all(
                [
                    training(20 * US, per=1000), training(200 * US), training(2 * MS, per=40),
                    training(20 * MS, sigma=0.3, per=8),
                ],
                _fixed(100, 200, 300, 400),
            ),
        ),
        Scenario(
            "B5", "fixed 10/20/30/40, kernels of 20 us, 100 us, 500 us, 4 ms", 20,
            _all(
                [
                    training(20 * US, per=1000), training(100 * US),
                    training(500 * US, sigma=0.3, per=40), training(4 * MS, sigma=0.1, per=10),
                ],
                _fixed(100, 200, 300, 400),
            ),
        ),
        Scenario(
            "C", "50/50, kernels of 5 us and 20 ms", 10,
            _all(
                [
                    training(5 * US, sigma=0.3, per=2000, gap_ns=0),
                    training(20 * MS, sigma=0.3, per=8),
                ],
                _burst(500, 500),
            ),
        ),
        Scenario(
            "D", "50/50, kernels of 100 us and 500 ms", 20,
            _all([SMALL, training(500 * MS, sigma=0.1, per=2)], _burst(500, 500)),
        ),
        Scenario("E", "fixed 30, alone", 10, _all([SMALL], _fixed(300))),
        Scenario(
            "E2", "fixed 30, beside one that is idle", 10, (*_all([SMALL], _fixed(300)), IDLE)
        ),
        Scenario("F", "alone", 10, (Runs("a", SMALL, Share(300), wants=False),)),
        Scenario(
            "G", "online, 40 requests/s of 3 ms, beside kernels of 100 us", 40,
            (ONLINE, Runs("offline", training(100 * US, per=1000), Share(700), wants=False)),
        ),
        Scenario(
            "H", "online, 40 requests/s of 3 ms, beside kernels of 5 ms", 40,
            (ONLINE, Runs("offline", LONG, Share(700), wants=False)),
        ),
        Scenario(
            "I", "70 comes back to a greedy 30, kernels of 100 us", 12, _comes_and_goes(SMALL)
        ),
        Scenario(
            "I2", "the same, the greedy one's kernels of 2 ms", 12,
            _comes_and_goes(training(2 * MS, sigma=0.3, per=10)),
        ),
        Scenario(
            "I20", "the same, the greedy one's kernels of 20 ms", 12,
            _comes_and_goes(training(20 * MS, sigma=0.3, per=8)),
        ),
        Scenario(
            "J", "16 tenants, 25 and 15 x 5, kernels of 100 us", 10,
            _all([SMALL] * 16, _burst(250, *[50] * 15)),
        ),
        Scenario("K", "online, 40 requests/s of 3 ms, alone", 40, (ONLINE,)),
        Scenario(
            "L", "50/50, the second in three processes", 10,
            (Runs("a", SMALL, Share(500)), Runs("b", SMALL, Share(500), processes=3)),
        ),
        Scenario(
            "M", "30/70, kernels of 100 us and graphs of 30 ms", 20,
            _all([SMALL, GRAPHS], _burst(300, 700)),
        ),
        Scenario(
            "N", "50/50 on each of two cards, the first on both with collectives", 10,
            (
                Runs("both", all_reduce(2), Share(500, gang=1), 2, (0, 1)),
                Runs("left", SMALL, Share(500), cards=(0,)),
                Runs("right", SMALL, Share(500), cards=(1,)),
            ),
            cards=2,
        ),
    )
}  # fmt: skip
