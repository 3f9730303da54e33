# SPDX-License-Identifier: Apache-2.0
"""What is lent of a card: never what is promised or used, and the same to all who want it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy.lending import STEP_BYTES, Part, decide

from .fakes import GIB, MIB

sizes = st.integers(0, 8 * GIB)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    memory, more = draw(st.integers(MIB, 8 * GIB)), draw(st.just(0) | sizes)
    return Part(memory, memory + more, draw(sizes))


cards = st.lists(parts(), max_size=6)
capacities = st.integers(0, 64 * GIB)


def part(memory_gib: float, most_gib: float = 0, used_gib: float = 0) -> Part:
    memory, most, used = (int(gib * GIB) for gib in (memory_gib, most_gib, used_gib))
    return Part(memory, max(memory, most), used)


def taken(one: Part) -> int:
    return max(one.memory_bytes, one.used_bytes)


@given(capacities, cards)
def test_a_limit_is_at_least_the_promise_and_at_most_what_was_asked(
    capacity: int, found: list[Part]
) -> None:
    for one, limit in zip(found, decide(capacity, found), strict=True):
        assert one.memory_bytes <= limit <= one.most_bytes


@given(capacities, cards)
def test_what_is_promised_or_used_is_never_lent(capacity: int, found: list[Part]) -> None:
    limits = decide(capacity, found)
    might_use = sum(max(limit, one.used_bytes) for one, limit in zip(found, limits, strict=True))
    assert might_use <= max(capacity, sum(map(taken, found)))


@given(capacities, cards)
def test_who_is_within_what_there_is_keeps_what_it_uses(capacity: int, found: list[Part]) -> None:
    limits = decide(capacity, found)
    if sum(map(taken, found)) <= capacity:
        for one, limit in zip(found, limits, strict=True):
            assert limit >= min(one.used_bytes, one.most_bytes)
    else:
        for one, limit in zip(found, limits, strict=True):
            assert limit <= taken(one)


@given(capacities, cards)
def test_nobody_is_given_more_while_another_that_wants_it_has_less(
    capacity: int, found: list[Part]
) -> None:
    lent = [
        (limit - one.memory_bytes, one)
        for one, limit in zip(found, decide(capacity, found), strict=True)
    ]
    for above, one in lent:
        if above > one.borrowed_bytes:  # it may take more than it has
            assert all(
                above <= less + STEP_BYTES for less, other in lent if less < other.wanted_bytes
            )


@given(capacities, cards, st.integers(0, 8 * GIB))
def test_a_new_promise_makes_no_limit_larger(capacity: int, found: list[Part], more: int) -> None:
    after = decide(capacity - more, found)
    assert all(new <= old for new, old in zip(after, decide(capacity, found), strict=True))


@given(capacities, cards)
def test_all_that_can_be_lent_is(capacity: int, found: list[Part]) -> None:
    limits = decide(capacity, found)
    left = capacity - sum(
        max(limit, one.used_bytes) for one, limit in zip(found, limits, strict=True)
    )
    for one, limit in zip(found, limits, strict=True):
        assert limit == one.most_bytes or left < STEP_BYTES * len(found)


def test_one_that_borrows_alone_is_lent_all_that_is_free() -> None:
    assert decide(100 * GIB, [part(40), part(10, 200)]) == (40 * GIB, 60 * GIB)


def test_two_that_want_the_same_get_the_same_and_small_wishes_are_met_first() -> None:
    limits = decide(100 * GIB, [part(10, 100), part(10, 100), part(10, 15)])
    assert limits == (int(42.5 * GIB), int(42.5 * GIB), 15 * GIB)


def test_who_came_first_keeps_what_it_has_and_the_rest_is_the_others() -> None:
    limits = decide(100 * GIB, [part(10, 100, used_gib=60), part(10, 100)])
    assert limits == (60 * GIB, 40 * GIB)


def test_what_a_quota_made_smaller_left_behind_is_lent_to_nobody() -> None:
    assert decide(100 * GIB, [part(10, used_gib=50), part(10, 100)]) == (10 * GIB, 50 * GIB)


def test_when_foreign_use_has_grown_the_highest_borrower_is_the_first_to_give_back() -> None:
    limits = decide(60 * GIB, [part(10, 100, used_gib=50), part(10, 100, used_gib=20), part(10)])
    assert limits == (30 * GIB, 20 * GIB, 10 * GIB)
