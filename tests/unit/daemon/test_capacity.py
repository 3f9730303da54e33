# SPDX-License-Identifier: Apache-2.0
"""The high-water mark of non-tenant use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.observe.non_tenant import HighWater

from .fakes import GIB, MIB


def test_it_halves_its_distance_every_half_life() -> None:
    mark = HighWater(60)
    mark.observe(0, 8 * GIB)
    assert mark.observe(60, 0) == 4 * GIB
    assert mark.observe(120, 2 * GIB) == 3 * GIB


def test_the_decay_does_not_depend_on_the_sample_rate() -> None:
    mark = HighWater(60)
    mark.observe(0, 8 * GIB)
    for quarter in range(1, 241):
        fallen = mark.observe(quarter / 4, 0)
    assert abs(fallen - 4 * GIB) < MIB


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 200 * GIB)), min_size=1))
def test_the_estimate_is_never_below_the_observed_use(looks: list[tuple[float, int]]) -> None:
    mark, now = HighWater(60), 0.0
    for waited, seen in looks:
        now += waited
        assert mark.observe(now, seen) >= seen
