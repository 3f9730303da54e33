# SPDX-License-Identifier: Apache-2.0
"""Shares of clients that synchronise: tools/model/synchronising.py has the tenants."""

import functools
from collections.abc import Iterator

import pytest

from tools.model import measure
from tools.model.clock import MS, SECOND, US
from tools.model.machine import MachineModel
from tools.model.policy import ShareStruct
from tools.model.programs import synchronising, training
from tools.model.synchronising import SYNCHRONISING, Judged, judge
from tools.model.tenant import ModelTenant, Program, Step, Thread

from .test_lending import hides_its_work


@functools.cache
def judged(key: str) -> Judged:
    return judge(SYNCHRONISING[key], seconds=2)


ALIKE = ["P1-20", "P8-20", "P1-100", "P8-100", "P1-2000", "Q8-20", "P8-100f"]
SLEEPING = ["S1-20", "S8-100"]


@pytest.mark.parametrize("key", [*ALIKE, *SLEEPING])
def test_their_shares_are_exact_over_a_second(key: str) -> None:
    assert judged(key).mean_error <= 1.2
    assert judged(key).max_error <= 2.5


@pytest.mark.parametrize("key", ALIKE)
def test_the_card_is_as_busy_as_without_gpushare(key: str) -> None:
    assert judged(key).of_native >= 97


@pytest.mark.parametrize("key", [*ALIKE, *SLEEPING])
def test_no_schedule_would_make_much_more_of_the_card(key: str) -> None:
    """Nothing fills the pauses of a client that sleeps."""
    most = judged(key).bound
    assert most is not None
    assert (0.82 if key in SLEEPING else 0.97) * most <= judged(key).gated.busy <= 1.005 * most


@pytest.mark.parametrize("key", SLEEPING)
def test_changes_of_windows_cost_next_to_nothing(key: str) -> None:
    assert judged(key).gated.busy >= 0.98 * min(judged(key).alone)


@pytest.mark.parametrize("key", ["X1-20", "X8-20"])
def test_a_neighbour_that_does_not_synchronise_loses_nothing(key: str) -> None:
    assert judged(key).gated.got["steady"] >= 69


@pytest.mark.parametrize("key", ["Z", "Zf"])
def test_tenants_that_are_bound_by_the_host_do_not_wait_for_each_other(key: str) -> None:
    assert judged(key).of_native >= 99


@pytest.mark.parametrize("key", ["W50", "W250"])
def test_the_card_does_not_idle_for_one_that_is_bound_by_the_host(key: str) -> None:
    assert judged(key).of_native >= 96.5


def later(program: Program, *, after_ns: int, us: int = 50) -> Program:
    """At the host most of the time at first."""

    def both(thread: Thread) -> Iterator[Step]:
        before = synchronising(us * US, 1, host_ns=440 * US, seed=us)(thread)
        while thread.clock.now < after_ns:
            yield next(before)
        yield from program(thread)

    return both


def share_in_the_first_second(machine: MachineModel, tenant: ModelTenant) -> float:
    machine.run(2)
    return measure.share(tenant, SECOND, 2 * SECOND)


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("ns", [100 * US, 5 * MS])
def test_windows_are_back_as_soon_as_tenants_contend(ns: int, capped: bool) -> None:
    machine = MachineModel()
    machine.tenant("a", later(training(ns), after_ns=SECOND), ShareStruct(300, capped=capped))
    tenant = machine.tenant(
        "b", later(training(ns), after_ns=SECOND, us=60), ShareStruct(700, capped=capped)
    )
    assert abs(share_in_the_first_second(machine, tenant) - 70) <= 2.5


@pytest.mark.parametrize("us", [50, 250])
def test_a_tenant_that_hides_its_work_takes_nothing_from_one_at_the_host(us: int) -> None:
    """Its neighbour claims the time that it waits for that work, so they contend."""
    shares = []
    for lie in (None, hides_its_work):
        machine = MachineModel()
        victim = machine.tenant(
            "victim", synchronising(us * US, 1, host_ns=440 * US), ShareStruct(500)
        )
        greedy = machine.tenant(
            "greedy", later(training(100 * US), after_ns=SECOND), ShareStruct(500)
        )
        greedy.places[0].lie = lie
        shares.append(share_in_the_first_second(machine, victim))
    honest, lied_to = shares
    assert lied_to >= 0.95 * honest
