# SPDX-License-Identifier: Apache-2.0
"""Tenants to be measured together, with a figure for each that can be wrong."""

from dataclasses import dataclass, field

from tools.model import measure
from tools.model.clock import MS, SECOND, US
from tools.model.hardware import CardTiming
from tools.model.machine import MachineModel
from tools.model.policy import ShareStruct
from tools.model.programs import all_reduce, idle, inference, on_and_off, training
from tools.model.tenant import ModelTenant, Program


@dataclass(frozen=True)
class Runs:
    """One tenant; `wants`: more than its share all the time, so that it is to get its share."""

    name: str
    program: Program
    share: ShareStruct
    processes: int = 1
    cards: tuple[int, ...] = (0,)
    wants: bool = True


@dataclass(frozen=True)
class ModelScenario:
    """Tenants, and for how long they are watched after the first second."""

    seconds: int
    tenants: tuple[Runs, ...]
    cards: int = 1
    timing: CardTiming = field(default_factory=CardTiming)


@dataclass(frozen=True)
class ModelResult:
    """What became of it; percent of a card, and points of it."""

    got: dict[str, float]
    mean_error: float  # over one second, of the tenant that is worst off
    max_error: float
    busy: float  # the card had work
    p99: dict[str, float]  # milliseconds, of tenants that answer requests
    machine: MachineModel


def play(scenario: ModelScenario, *, gated: bool = True, seconds: int = 0) -> ModelResult:
    """Run it in simulated time."""
    machine = MachineModel(cards=scenario.cards, gated=gated, timing=scenario.timing)
    for each in scenario.tenants:
        machine.tenant(
            each.name, each.program, each.share, processes=each.processes, cards=each.cards
        )
    start, end = SECOND, (1 + (seconds or scenario.seconds)) * SECOND
    machine.run(end / SECOND)
    pairs = list(zip(scenario.tenants, machine.tenants, strict=True))
    errors = [_errors(tenant, start, end) for each, tenant in pairs if each.wants]
    asked = [tenant for tenant in machine.tenants if tenant.latencies]
    return ModelResult(
        got={tenant.name: measure.share(tenant, start, end) for tenant in machine.tenants},
        mean_error=max((mean for mean, _ in errors), default=0.0),
        max_error=max((most for _, most in errors), default=0.0),
        busy=100 - measure.idle(machine.on(0), start, end),
        p99={tenant.name: measure.percentile(tenant.latencies, 99) / MS for tenant in asked},
        machine=machine,
    )


def _errors(tenant: ModelTenant, start: int, end: int) -> tuple[float, float]:
    each = [
        measure.error(tenant, tenant.share.permille / 10, start, end, card)
        for card in range(len(tenant.places))
    ]
    return max(mean for mean, _ in each), max(most for _, most in each)


def _burst(*permille: int) -> list[ShareStruct]:
    return [ShareStruct(each) for each in permille]


def _fixed(*permille: int) -> list[ShareStruct]:
    return [ShareStruct(each, capped=True) for each in permille]


def _all(programs: list[Program], shares: list[ShareStruct]) -> tuple[Runs, ...]:
    return tuple(
        Runs(chr(ord("a") + at), program, share)
        for at, (program, share) in enumerate(zip(programs, shares, strict=True))
    )


SMALL = training(100 * US)
GRAPHS = training(30 * MS, sigma=0.05, per=10)
ONLINE = Runs("online", inference(40), ShareStruct(300, online=True), wants=False)
IDLE = Runs("idle", idle, ShareStruct(700, capped=True), wants=False)


def _comes_and_goes(greedy: Program) -> ModelScenario:
    returning = on_and_off(SMALL, 300 * MS, 300 * MS)
    tenants = (
        Runs("greedy", greedy, ShareStruct(300), wants=False),
        Runs("returns", returning, ShareStruct(700), wants=False),
    )
    return ModelScenario(12, tenants)


def _online(offline: Program) -> ModelScenario:
    return ModelScenario(40, (ONLINE, Runs("offline", offline, ShareStruct(700), wants=False)))


#: The letters are those of docs/explanation/compute-shares.md.
SCENARIOS = {
    "A": ModelScenario(20, _all([SMALL] * 2, _burst(300, 700))),
    "A3": ModelScenario(20, _all([SMALL] * 3, _burst(200, 300, 500))),
    "B": ModelScenario(
        20,
        _all(
            [
                training(20 * US, per=1000),
                training(200 * US),
                training(2 * MS, per=40),
                training(20 * MS, sigma=0.3, per=8),
            ],
            _fixed(100, 200, 300, 400),
        ),
    ),
    "B5": ModelScenario(
        20,
        _all(
            [
                training(20 * US, per=1000),
                training(100 * US),
                training(500 * US, sigma=0.3, per=40),
                training(4 * MS, sigma=0.1, per=10),
            ],
            _fixed(100, 200, 300, 400),
        ),
    ),
    "C": ModelScenario(
        10,
        _all(
            [
                training(5 * US, sigma=0.3, per=2000, gap_ns=0),
                training(20 * MS, sigma=0.3, per=8),
            ],
            _burst(500, 500),
        ),
    ),
    "E": ModelScenario(10, _all([SMALL], _fixed(300))),
    "E2": ModelScenario(10, (*_all([SMALL], _fixed(300)), IDLE)),
    "F": ModelScenario(10, (Runs("a", SMALL, ShareStruct(300), wants=False),)),
    "G": _online(training(100 * US, per=1000)),
    "H": _online(training(5 * MS, sigma=0.3, per=40)),
    "I": _comes_and_goes(SMALL),
    "I2": _comes_and_goes(training(2 * MS, sigma=0.3, per=10)),
    "I20": _comes_and_goes(training(20 * MS, sigma=0.3, per=8)),
    "J": ModelScenario(10, _all([SMALL] * 16, _burst(250, *[50] * 15))),
    "K": ModelScenario(40, (ONLINE,)),
    "L": ModelScenario(
        10, (Runs("a", SMALL, ShareStruct(500)), Runs("b", SMALL, ShareStruct(500), processes=3))
    ),
    "M": ModelScenario(20, _all([SMALL, GRAPHS], _burst(300, 700))),
    "N": ModelScenario(
        10,
        (
            Runs("both", all_reduce(2), ShareStruct(500, gang=1), 2, (0, 1)),
            Runs("left", SMALL, ShareStruct(500), cards=(0,)),
            Runs("right", SMALL, ShareStruct(500), cards=(1,)),
        ),
        cards=2,
    ),
}
