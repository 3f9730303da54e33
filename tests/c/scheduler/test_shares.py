# SPDX-License-Identifier: Apache-2.0
"""Shares of a card, in simulated time: tools/model/scenarios.py has the tenants."""

import functools

import pytest

from tools.model import measure
from tools.model.clock import MS, SECOND, US
from tools.model.machine import MachineModel
from tools.model.policy import ShareStruct
from tools.model.programs import inference, training
from tools.model.scenarios import SCENARIOS, ModelResult, play


@functools.cache
def outcome(key: str) -> ModelResult:
    return play(SCENARIOS[key], seconds=min(10, SCENARIOS[key].seconds))


@functools.cache
def native(key: str) -> ModelResult:
    return play(SCENARIOS[key], gated=False, seconds=5)


def of_solo(key: str) -> float:
    """Percent of what one tenant alone gets done."""
    return 100 * outcome(key).busy / outcome("F").busy


@pytest.mark.parametrize("key", ["A", "A3", "B5", "E", "E2", "J"])
def test_shares_of_kernels_up_to_5_ms_are_exact_over_a_second(key: str) -> None:
    assert outcome(key).mean_error <= 1.2
    assert outcome(key).max_error <= 2


@pytest.mark.parametrize("key", ["B", "C", "M"])
def test_shares_of_longer_kernels_and_graphs_are_nearly_so(key: str) -> None:
    assert outcome(key).mean_error <= 1.2
    assert outcome(key).max_error <= 3.5


@pytest.mark.parametrize("key", ["A", "A3", "B", "B5", "C", "M"])
def test_two_to_four_tenants_get_as_much_done_as_one(key: str) -> None:
    assert of_solo(key) >= 97.5
    assert outcome(key).busy > native(key).busy + 4


def test_a_single_tenant_loses_nothing() -> None:
    alone, bare = outcome("F"), native("F")
    assert alone.got["a"] >= bare.got["a"] - 0.1
    assert alone.machine.devices[0].decisions == 1  # when it was added


def test_more_processes_gain_nothing() -> None:
    assert outcome("L").got["a"] >= 48.5
    assert native("L").got["a"] < 25


@pytest.mark.parametrize(("key", "times"), [("G", 1.2), ("H", 1.8)])
def test_requests_are_answered_nearly_as_fast_as_alone(key: str, times: float) -> None:
    """For 40 s: the hundredth of 1600 requests."""
    alone = play(SCENARIOS["K"]).p99["online"]
    beside = play(SCENARIOS[key])
    assert beside.p99["online"] <= times * alone
    assert beside.busy > 97


@pytest.mark.parametrize("key", ["I", "I2", "I20"])
def test_a_returning_tenant_has_the_card_within_10_ms(key: str) -> None:
    returns = outcome(key).machine.tenants[1]
    assert len(returns.latencies) > 10
    assert max(returns.latencies[1:]) < 3 * MS  # at the first all begin together


def test_work_on_two_cards_gets_its_share_of_both() -> None:
    both = outcome("N").machine.tenants[0]
    end = outcome("N").machine.clock.now
    alone = MachineModel(cards=2)
    runs = SCENARIOS["N"].tenants[0]
    alone.tenant("both", runs.program, runs.share, processes=2, cards=(0, 1))
    alone.run(2)
    shares = [measure.share(both, SECOND, end, card) for card in range(2)]
    assert sum(shares) / 2 >= 0.95 * 50
    assert min(shares) >= 0.94 * 50
    iterations = len(both.latencies) * SECOND / end
    assert iterations >= 0.94 * 0.5 * len(alone.tenants[0].latencies) / 2


def test_priorities_are_strict_among_those_that_are_not_online() -> None:
    machine = MachineModel()
    first = machine.tenant("first", training(100 * US), ShareStruct(100, priority=1))
    second = machine.tenant("second", training(100 * US), ShareStruct(900, priority=2))
    machine.run(3)
    assert measure.share(first, SECOND, machine.clock.now) > 92
    assert measure.share(second, SECOND, machine.clock.now) < 7


def test_two_online_tenants_share_as_the_hardware_does() -> None:
    machine = MachineModel()
    for name in ("one", "other"):
        machine.tenant(name, inference(30), ShareStruct(100, online=True))
    offline = machine.tenant("offline", training(100 * US), ShareStruct(800))
    machine.run(10)
    for online in machine.tenants[:2]:
        assert online.places[0].forced == 0
        assert measure.percentile(online.latencies, 50) < 7 * MS
    assert measure.share(offline, SECOND, machine.clock.now) > 65
