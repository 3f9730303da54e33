# SPDX-License-Identifier: Apache-2.0
"""The duty cycle of a tenant, by a model of one that bypasses the gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy import escalation
from gpushare.daemon.policy.compute import Share

LOOK_NS = 250 * 10**6
SECOND_NS = 10**9


def share(permille: int, *, capped: bool = False, online: bool = False) -> Share:
    return Share(permille, capped=capped, online=online, priority=1)


class Model:
    """It gets `asks` percent of the card while it runs; the driver says so of two seconds.

    It queues work for `queue` seconds at that pace whenever it runs, which no freeze takes back.
    """

    def __init__(
        self, asks: float, may: float, *, noise: tuple[float, ...] = (0.0,), queue: float = 0.0
    ) -> None:
        self.asks, self.may, self.noise = asks, may, noise
        self.queue = self.queued = queue
        self.driver_ns = 0
        self.now_ns = 0
        self.state = escalation.DutyState()
        self.got = [asks] * (2 * SECOND_NS // LOOK_NS)  # by look, of the last two seconds
        self.had: list[float] = []
        self.goes_round = True

    def seconds(self, seconds: float) -> escalation.DutyState:
        for _ in range(int(seconds * SECOND_NS / LOOK_NS)):
            self.now_ns += LOOK_NS
            self.had.append(self.asks * self._busy())
            self.driver_ns += int(LOOK_NS * self.had[-1] / 100)
            self.got = [*self.got[1:], self.had[-1]]
            lately = sum(self.got) / len(self.got)
            seen = max(0.0, lately + self.noise[len(self.had) % len(self.noise)])
            sample = escalation.DutySample(seen, self.may, self.goes_round, self.driver_ns)
            self.state = escalation.next_duty(self.now_ns, sample, self.state)
        return self.state

    def _busy(self) -> float:
        """For which part of the time until the next look the card has work of it."""
        seconds = LOOK_NS / SECOND_NS
        if self.state.part > 0 and self.queue:
            self.queued = self.queue
            return 1.0
        served = min(self.queued, seconds)
        self.queued -= served
        return max(self.state.part, served / seconds)

    def mean(self, seconds: float) -> float:
        """What it gets from now on, in percent of the card."""
        before = len(self.had)
        self.seconds(seconds)
        return sum(self.had[before:]) / (len(self.had) - before)


@pytest.mark.parametrize("queue", [0.3, 1.0, 5.0])
def test_a_queue_that_outlives_a_freeze_is_waited_for(queue: float) -> None:
    model = Model(50, 30, queue=queue)
    model.seconds(30)
    assert model.mean(120) == pytest.approx(30, abs=2)


@given(
    may=st.floats(6, 90),
    above=st.floats(1.3, 16),
    noise=st.lists(st.floats(-2, 2), min_size=1, max_size=7).map(tuple),
)
def test_the_duty_cycle_keeps_the_share_for_any_load(
    may: float, above: float, noise: tuple[float, ...]
) -> None:
    model = Model(min(100.0, may * above + 8), may, noise=noise)
    model.seconds(45)
    assert model.mean(60) == pytest.approx(may, abs=3)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans()), max_size=60))
def test_it_never_runs_for_less_than_the_least(looks: list[tuple[float, float, bool]]) -> None:
    state = escalation.DutyState()
    for number, (got, may, goes_round) in enumerate(looks):
        state = escalation.next_duty(
            number * escalation.STEP_NS,
            escalation.DutySample(got, may, goes_round, number * 10**9),
            state,
        )
        assert escalation.LEAST <= state.runs <= 1.0
        assert state.engaged or state.runs == 1.0


def test_one_sample_is_not_enough() -> None:
    state, over = (
        escalation.DutyState(),
        escalation.DutySample(90, 30, goes_round=True, driver_ns=0),
    )
    calm = escalation.DutySample(31, 30, goes_round=True, driver_ns=0)
    for sample in [over] * (escalation.LOOKS - 1) + [calm] + [over] * (escalation.LOOKS - 1):
        state = escalation.next_duty(0, sample, state)
        assert not state.engaged
    assert escalation.next_duty(0, over, state).engaged


def test_a_tenant_within_its_share_is_thawed() -> None:
    model = Model(100, 30)
    assert model.seconds(30).engaged
    model.asks = 20
    assert not model.seconds(60).engaged


def test_a_sample_without_figures_thaws_at_once() -> None:
    model = Model(100, 30)
    assert model.seconds(30).runs < 1
    assert escalation.next_duty(model.now_ns, None, model.state) == escalation.DutyState()


def test_a_tenant_may_use_its_cap_or_the_share_that_active_others_leave() -> None:
    thirty, busy, idle = share(300), (share(400), True), (share(300), False)
    assert escalation.allowed_percent(share(300, capped=True), []) == 30
    assert escalation.allowed_percent(thirty, []) is None
    assert escalation.allowed_percent(thirty, [idle]) is None
    assert escalation.allowed_percent(thirty, [busy, idle]) == 60
    assert escalation.allowed_percent(thirty, [busy, (share(300), True)]) == 30
    assert escalation.allowed_percent(share(300, online=True), [busy]) is None
