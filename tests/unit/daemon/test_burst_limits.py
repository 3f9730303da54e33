# SPDX-License-Identifier: Apache-2.0
"""Burst limits of a card: never reserved or used memory, and the same for all that want it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.limits.burst import STEP_BYTES, BurstRange, burst_limits

from .fakes import GIB, MIB

sizes = st.integers(0, 8 * GIB)


@st.composite
def parts(draw: st.DrawFn) -> BurstRange:
    memory, more = draw(st.integers(MIB, 8 * GIB)), draw(st.just(0) | sizes)
    return BurstRange(memory, memory + more, draw(sizes))


cards = st.lists(parts(), max_size=6)
capacities = st.integers(0, 64 * GIB)


def part(memory_gib: float, most_gib: float = 0, used_gib: float = 0) -> BurstRange:
    memory, most, used = (int(gib * GIB) for gib in (memory_gib, most_gib, used_gib))
    return BurstRange(memory, max(memory, most), used)


def taken(one: BurstRange) -> int:
    return max(one.memory_bytes, one.used_bytes)


@given(capacities, cards)
def test_a_limit_lies_between_the_quota_and_the_burst_limit(
    capacity: int, found: list[BurstRange]
) -> None:
    for one, limit in zip(found, burst_limits(capacity, found), strict=True):
        assert one.memory_bytes <= limit <= one.most_bytes


@given(capacities, cards)
def test_reserved_and_used_memory_is_never_granted_for_bursts(
    capacity: int, found: list[BurstRange]
) -> None:
    limits = burst_limits(capacity, found)
    might_use = sum(max(limit, one.used_bytes) for one, limit in zip(found, limits, strict=True))
    assert might_use <= max(capacity, sum(map(taken, found)))


@given(capacities, cards)
def test_a_tenant_within_the_available_memory_keeps_its_use(
    capacity: int, found: list[BurstRange]
) -> None:
    limits = burst_limits(capacity, found)
    if sum(map(taken, found)) <= capacity:
        for one, limit in zip(found, limits, strict=True):
            assert limit >= min(one.used_bytes, one.most_bytes)
    else:
        for one, limit in zip(found, limits, strict=True):
            assert limit <= taken(one)


@given(capacities, cards)
def test_no_tenant_gets_more_while_another_that_wants_it_has_less(
    capacity: int, found: list[BurstRange]
) -> None:
    bursting = [
        (limit - one.memory_bytes, one)
        for one, limit in zip(found, burst_limits(capacity, found), strict=True)
    ]
    for above, one in bursting:
        if above > one.burst_used_bytes:  # it may take more than it has
            assert all(
                above <= less + STEP_BYTES for less, other in bursting if less < other.wanted_bytes
            )


def test_two_that_want_the_same_get_the_same_and_small_wishes_are_met_first() -> None:
    limits = burst_limits(100 * GIB, [part(10, 100), part(10, 100), part(10, 15)])
    assert limits == (int(42.5 * GIB), int(42.5 * GIB), 15 * GIB)


def test_growing_non_tenant_use_reduces_the_largest_burst_first() -> None:
    limits = burst_limits(
        60 * GIB, [part(10, 100, used_gib=50), part(10, 100, used_gib=20), part(10)]
    )
    assert limits == (30 * GIB, 20 * GIB, 10 * GIB)
