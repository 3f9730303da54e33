# SPDX-License-Identifier: Apache-2.0
"""For how much of the time somebody runs, by a model of one who goes round the gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy import Share, duty

LOOK_NS = 250 * 10**6
SECOND_NS = 10**9


def share(permille: int, *, capped: bool = False, online: bool = False) -> Share:
    return Share(permille, capped=capped, online=online, priority=1)


class Model:
    """It gets `asks` percent of the card while it runs; the driver says so of two seconds."""

    def __init__(self, asks: float, may: float, *, noise: tuple[float, ...] = (0.0,)) -> None:
        self.asks, self.may, self.noise = asks, may, noise
        self.now_ns = 0
        self.state = duty.State()
        self.got = [asks] * (2 * SECOND_NS // LOOK_NS)  # by look, of the last two seconds
        self.had: list[float] = []
        self.goes_round = True

    def seconds(self, seconds: float) -> duty.State:
        for _ in range(int(seconds * SECOND_NS / LOOK_NS)):
            self.now_ns += LOOK_NS
            self.had.append(self.asks * self.state.runs)
            self.got = [*self.got[1:], self.had[-1]]
            lately = sum(self.got) / len(self.got)
            seen = max(0.0, lately + self.noise[len(self.had) % len(self.noise)])
            sample = duty.Sample(seen, self.may, self.goes_round)
            self.state = duty.decide(self.now_ns, sample, self.state)
        return self.state

    def mean(self, seconds: float) -> float:
        """What it gets from now on, in percent of the card."""
        before = len(self.had)
        self.seconds(seconds)
        return sum(self.had[before:]) / (len(self.had) - before)


@pytest.mark.parametrize(("asks", "may"), [(100, 30), (100, 70), (70, 30), (100, 5), (50, 10)])
def test_it_comes_to_have_what_it_may(asks: float, may: float) -> None:
    model = Model(asks, may)
    model.seconds(30)
    assert model.mean(30) == pytest.approx(may, abs=1)


@given(
    may=st.floats(6, 90),
    above=st.floats(1.3, 16),
    noise=st.lists(st.floats(-2, 2), min_size=1, max_size=7).map(tuple),
)
def test_it_has_what_it_may_whatever_it_asks(
    may: float, above: float, noise: tuple[float, ...]
) -> None:
    model = Model(min(100.0, may * above + 8), may, noise=noise)
    model.seconds(45)
    assert model.mean(60) == pytest.approx(may, abs=3)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans()), max_size=60))
def test_it_never_runs_for_less_than_the_least(looks: list[tuple[float, float, bool]]) -> None:
    state = duty.State()
    for number, (got, may, goes_round) in enumerate(looks):
        state = duty.decide(number * duty.STEP_NS, duty.Sample(got, may, goes_round), state)
        assert duty.LEAST <= state.runs <= 1.0
        assert state.engaged or state.runs == 1.0


def test_one_look_is_no_reason() -> None:
    state, over = duty.State(), duty.Sample(90, 30, goes_round=True)
    calm = duty.Sample(31, 30, goes_round=True)
    for sample in [over] * (duty.LOOKS - 1) + [calm] + [over] * (duty.LOOKS - 1):
        state = duty.decide(0, sample, state)
        assert not state.engaged
    assert duty.decide(0, over, state).engaged


def test_who_passes_the_gate_is_never_held() -> None:
    model = Model(100, 30)
    model.goes_round = False
    assert not model.seconds(60).engaged


def test_who_passes_the_gate_again_is_let_go() -> None:
    model = Model(100, 30)
    assert model.seconds(30).engaged
    model.goes_round, model.asks = False, 30
    assert not model.seconds(60).engaged


def test_who_asks_no_more_than_it_may_is_let_go() -> None:
    model = Model(100, 30)
    assert model.seconds(30).engaged
    model.asks = 20
    assert not model.seconds(60).engaged


def test_a_look_that_says_nothing_lets_go_at_once() -> None:
    model = Model(100, 30)
    assert model.seconds(30).runs < 1
    assert duty.decide(model.now_ns, None, model.state) == duty.State()


def test_what_one_may_is_a_cap_or_what_others_at_work_leave() -> None:
    thirty, busy, idle = share(300), (share(400), True), (share(300), False)
    assert duty.may(share(300, capped=True), []) == 30
    assert duty.may(thirty, []) is None
    assert duty.may(thirty, [idle]) is None
    assert duty.may(thirty, [busy, idle]) == 60
    assert duty.may(thirty, [busy, (share(300), True)]) == 30
    assert duty.may(share(300, online=True), [busy]) is None
