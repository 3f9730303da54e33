# SPDX-License-Identifier: Apache-2.0
"""Pauses that are lent to other tenants: scheduler/lending.h."""

import functools
from collections.abc import Callable, Iterator

import pytest

from tools.model import measure
from tools.model.clock import MS, SECOND, US
from tools.model.hardware import CardTiming
from tools.model.machine import MachineModel
from tools.model.policy import SeenStruct, ShareStruct
from tools.model.programs import synchronising, training
from tools.model.synchronising import SYNCHRONISING, Judged, judge
from tools.model.tenant import Program, Step, Thread

SECONDS = 4
ALONE = 50.7  # of 70 % of windows without guests: what the victim gets where nothing is lent


@functools.cache
def judged(key: str) -> Judged:
    return judge(SYNCHRONISING[key], seconds=3)


LENT = ["S1-200-85-0", "T8-20-85-0", "S1-200-200-30", "T8-20-200-30", "S1-500-450-160"]


@pytest.mark.parametrize("key", LENT)
def test_pauses_that_are_worth_two_switches_are_filled(key: str) -> None:
    assert judged(key).gated.busy >= 0.95 * (judged(key).bound or 100)
    assert judged(key).mean_error <= 1.2
    assert judged(key).max_error <= 2.5


@pytest.mark.parametrize("key", ["S1-200-85-160", "T8-20-85-160"])
def test_other_pauses_are_not(key: str) -> None:
    """They would be filled with switches."""
    assert judged(key).gated.busy >= 0.97 * (judged(key).bound or 100)


def sleeping(us: int, pause_us: int, seed: int = 0) -> Program:
    return synchronising(us * US, 1, wake_ns=((pause_us - 35) * US, (pause_us + 5) * US), seed=seed)


def shares(
    program: Program,
    lie: Callable[[SeenStruct], None] | None = None,
    share: ShareStruct | None = None,
) -> tuple[float, float]:
    """Of a tenant that may be hostile, and of its victim."""
    machine = MachineModel(timing=CardTiming(preempt_ns=0, drained_ns=0))
    hostile = machine.tenant("hostile", program, share or ShareStruct(300))
    hostile.places[0].lie = lie
    victim = machine.tenant("victim", sleeping(200, 85, seed=1), ShareStruct(700))
    machine.run(SECONDS)
    end = SECONDS * SECOND
    return measure.share(hostile, SECOND, end), measure.share(victim, SECOND, end)


def test_honest_tenants_both_gain() -> None:
    first, second = shares(sleeping(200, 85))
    assert first > 24.5
    assert second > ALONE + 7


def test_a_tenant_with_a_cap_lends_and_borrows_nothing() -> None:
    first, second = shares(sleeping(200, 85), share=ShareStruct(300, capped=True))
    assert first <= 30
    assert second == pytest.approx(ALONE, abs=1)


def hides_its_work(seen: SeenStruct) -> None:
    seen.busy_ns = seen.pending_ns = seen.contexts = 0
    seen.idle_ns = seen.at_ns


def submits_nothing(seen: SeenStruct) -> None:
    seen.submitted = 0


def submits_a_quarter(seen: SeenStruct) -> None:
    seen.submitted //= 4


def submits_much(seen: SeenStruct) -> None:
    seen.submitted *= 100


def never_pauses(seen: SeenStruct) -> None:
    seen.contexts, seen.idle_ns = max(seen.contexts, 1), 0


@pytest.mark.parametrize(
    "lie",
    [hides_its_work, submits_nothing, submits_a_quarter, submits_much, never_pauses],
)
def test_false_claims_take_nothing_from_a_neighbour(lie: Callable[[SeenStruct], None]) -> None:
    assert shares(sleeping(200, 85), lie)[1] >= 0.98 * ALONE


def longer_as_a_guest(thread: Thread) -> Iterator[Step]:
    """Short units while they are measured, long ones while it is a guest."""
    short, long = sleeping(100, 85)(thread), sleeping(1500, 85)(thread)
    place = thread.works[0].place
    while True:
        steps = long if 0 < place.in_flight_max < 2 * MS else short
        for _ in range(3):
            yield next(steps)


def at_the_host(thread: Thread) -> Iterator[Step]:
    """Pauses all the time, so that it could lend a card that it hardly uses."""
    yield from sleeping(5, 850)(thread)


@pytest.mark.parametrize("program", [longer_as_a_guest, at_the_host, training(100 * US)])
def test_other_work_than_was_measured_takes_nothing_from_a_neighbour(program: Program) -> None:
    assert shares(program)[1] >= 0.98 * ALONE


def test_who_is_at_the_host_keeps_no_window_from_others() -> None:
    assert shares(at_the_host, share=ShareStruct(900))[1] > 60
