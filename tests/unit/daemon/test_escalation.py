# SPDX-License-Identifier: Apache-2.0
"""Escalation: a tenant within its limit is never touched, and no step comes early."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy import (
    CHOICES,
    FROZEN_LOOKS,
    GRACE_NS,
    SPARED_NS,
    Action,
    Choice,
    Entitlement,
    EscalationState,
    QuotaSample,
    Share,
    allowed_percent,
    entitlement,
    next_step,
    spared,
)

GIB = 1 << 30
MIB = 1 << 20
MS = 10**6
SECOND = 10**9
FAR = QuotaSample(9 * GIB, 4 * GIB, 64 * MIB)
NEAR = QuotaSample(4 * GIB + 200 * MIB, 4 * GIB, 64 * MIB)
SHORT = QuotaSample(9 * GIB, 4 * GIB, 64 * MIB, has_shortfall=True, shortfall_bytes=GIB)
UNDER = QuotaSample(4 * GIB + 64 * MIB, 4 * GIB, 64 * MIB)


def climb(
    choice: Choice,
    *samples: QuotaSample | None,
    state: EscalationState | None = None,
    step_ns: int = 250 * MS,
) -> tuple[EscalationState, list[Action]]:
    """Return the end of a course of looks, and all that was done on the way."""
    done: list[Action] = []
    state = state or EscalationState()
    for number, sample in enumerate(samples):
        state, actions = next_step(number * step_ns, sample, state, choice)
        done += actions
    return state, done


def test_use_is_detected_at_the_second_sample_and_frozen_at_the_third() -> None:
    assert climb("freeze", FAR) == (EscalationState(looks=1, grave_since_ns=0), [])
    assert climb("freeze", FAR, FAR)[1] == ["warn"]
    assert climb("freeze", FAR, FAR, FAR)[1] == ["warn", "freeze"]
    assert climb("freeze", *[FAR] * 100)[1] == ["warn", "freeze"]


def test_the_operators_choice_is_as_far_as_it_goes() -> None:
    assert climb("observe", *[FAR] * 100)[1] == ["observe"]
    assert climb("warn", *[FAR] * 100)[1] == ["warn"]
    assert climb("kill", *[FAR] * 9)[1] == ["warn", "freeze", "kill"]


def test_a_slight_excess_is_frozen_and_not_killed() -> None:
    assert climb("kill", *[NEAR] * 100)[1] == ["warn", "freeze"]


def test_a_slight_excess_is_killed_if_another_tenant_has_a_shortfall() -> None:
    lacking = QuotaSample(NEAR.used_bytes, NEAR.may_bytes, NEAR.slack_bytes, has_shortfall=True)
    assert climb("kill", *[lacking] * 3)[1] == ["warn", "freeze", "kill"]
    assert climb("freeze", *[lacking] * 30)[1] == ["warn", "freeze"]


def starving(samples: int) -> list[Action]:
    """Return what is done about a frozen tenant in `samples` a second apart, 30 s being allowed."""
    state, done = climb("freeze", FAR, FAR, FAR)
    for number in range(samples):
        sample = replace(SHORT, has_shortfall=number == 0)
        state, actions = next_step(number * SECOND, sample, state, "freeze", 30 * SECOND)
        done += actions
    return done


def test_a_frozen_tenant_that_keeps_another_from_its_quota_is_killed_in_the_end() -> None:
    assert starving(30) == ["warn", "freeze"]
    assert starving(31) == ["warn", "freeze", "kill"]


@pytest.mark.parametrize(
    ("samples", "delay_ns"),
    [
        ([replace(FAR, has_shortfall=True)], 30 * SECOND),  # whatever others report: there is room
        ([replace(FAR, shortfall_bytes=GIB)], 30 * SECOND),  # and no other tries to allocate
        ([*[SHORT] * 19, FAR], 30 * SECOND),  # memory becomes free before the time is over
        ([SHORT], None),
    ],
)
def test_a_frozen_tenant_stays_frozen_while_the_driver_shows_room(
    samples: list[QuotaSample], delay_ns: int | None
) -> None:
    state, _ = climb("freeze", FAR, FAR, FAR)
    for second, sample in zip(range(400), itertools.cycle(samples)):
        state, actions = next_step(second * SECOND, sample, state, "freeze", delay_ns)
        assert not actions


def test_a_tenant_that_survives_a_kill_is_killed_again_after_two_seconds() -> None:
    assert climb("kill", *[FAR] * 17)[1] == ["warn", "freeze", "kill", "kill"]


def test_a_sample_without_figures_restarts_the_count() -> None:
    assert climb("kill", *[FAR, None] * 50)[1] == []
    assert climb("kill", FAR, FAR, *[None, FAR] * 50)[1] == ["warn"]


def test_an_action_stays_in_force_while_figures_are_missing() -> None:
    state, done = climb("freeze", FAR, FAR, FAR, *[None] * 100)
    assert (state.level, done) == ("frozen", ["warn", "freeze"])


def test_a_tenant_that_returned_below_its_limit_is_thawed_after_four_samples() -> None:
    assert climb("freeze", FAR, FAR, FAR, *[UNDER] * 3)[1] == ["warn", "freeze"]
    assert climb("freeze", FAR, FAR, FAR, *[UNDER] * 4)[1] == ["warn", "freeze", "thaw"]
    assert climb("warn", FAR, FAR, *[UNDER] * 4)[1] == ["warn", "calm"]


def test_an_operator_that_chooses_less_lets_it_go_on() -> None:
    state, _ = climb("freeze", FAR, FAR, FAR)
    assert next_step(SECOND, FAR, state, "warn")[1] == ("thaw",)


def test_a_resumed_tenant_has_a_minute() -> None:
    frozen, _ = climb("freeze", FAR, FAR, FAR)
    resumed = spared(frozen, SECOND + SPARED_NS)
    state, done = climb("freeze", *[FAR] * 244, state=resumed)  # to 60.75 s
    assert (state.level, done) == ("detected", [])
    state, done = climb("freeze", *[FAR] * 245, state=resumed)
    assert (state.level, done) == ("frozen", ["freeze"])


SIZES = st.integers(0, 16 * GIB)
SAMPLES = st.none() | st.builds(QuotaSample, SIZES, SIZES, st.integers(0, GIB), st.booleans())
CHOICE = st.sampled_from(CHOICES)


@given(st.lists(SAMPLES, max_size=40), CHOICE, st.integers(1, SECOND))
def test_no_tenant_is_touched_at_a_sample_within_its_limit_and_no_step_is_skipped(
    samples: list[QuotaSample | None], choice: Choice, step_ns: int
) -> None:
    may = {"observe": {"observe"}, "warn": {"warn"}, "freeze": {"warn", "freeze"}}
    allowed = may.get(choice, {"warn", "freeze", "kill"})
    state, above = EscalationState(), 0
    for number, sample in enumerate(samples):
        before = state.level
        state, actions = next_step(number * step_ns, sample, state, choice)
        is_over = sample and sample.used_bytes > sample.may_bytes + sample.slack_bytes
        above = above + 1 if is_over else 0
        assert (allowed if above else set()) >= {*actions} - {"thaw", "calm"}
        if "freeze" in actions:
            assert above >= FROZEN_LOOKS
            assert before == "detected" or "warn" in actions
        if "kill" in actions:
            assert before in {"frozen", "killed"} or "freeze" in actions


def course(*looks: tuple[float, int, int]) -> Entitlement:
    """Return what comes of looks at (seconds, limit, used)."""
    known: Entitlement | None = None
    for seconds, limit, used in looks:
        known = entitlement(int(seconds * SECOND), limit, used, known, ever_bytes=0)
    assert known is not None
    return known


def test_a_reduced_limit_leaves_allocated_memory() -> None:
    """Burst memory that is reserved by another, and a quota that shrinks below its use."""
    looks = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(60)]
    assert course(*looks).may_bytes == 7 * GIB


def test_an_allocation_in_progress_when_the_limit_falls_is_not_a_bypass() -> None:
    looks = [(10.0, 8 * GIB, 2 * GIB), (10.25, 4 * GIB, 2 * GIB), (10.5, 4 * GIB, 8 * GIB)]
    assert course(*looks, (30.0, 4 * GIB, 8 * GIB), (31.0, 4 * GIB, 8 * GIB)).may_bytes == 8 * GIB


def test_memory_that_was_freed_may_not_be_taken_again() -> None:
    looks = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(20)]
    freed = [(second, 4 * GIB, 5 * GIB) for second in range(20, 40)]
    assert course(*looks, *freed).may_bytes == 5 * GIB
    assert course(*looks, *freed, (40, 4 * GIB, 9 * GIB)).may_bytes == 5 * GIB


def test_one_incomplete_sample_changes_nothing() -> None:
    looks = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(20)]
    assert course(*looks, (20, 4 * GIB, 0), (21, 4 * GIB, 7 * GIB)).may_bytes == 7 * GIB


def test_a_tenant_seen_for_the_first_time_may_keep_any_earlier_limit() -> None:
    first = entitlement(0, 4 * GIB, 6 * GIB, None, ever_bytes=8 * GIB)
    assert first.may_bytes == 8 * GIB
    later = entitlement(2 * GRACE_NS, 4 * GIB, 6 * GIB, first, ever_bytes=8 * GIB)
    again = entitlement(4 * GRACE_NS, 4 * GIB, 6 * GIB, later, ever_bytes=8 * GIB)
    assert again.may_bytes == 6 * GIB


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 16), st.integers(0, 16)), max_size=40
    )
)
def test_the_allowed_amount_lies_between_the_current_and_the_highest_limit(
    looks: list[tuple[int, int, int]],
) -> None:
    now, known, highest = 0, None, 0
    for step, limit, used in looks:
        now, highest = now + step, max(highest, limit)
        known = entitlement(now, limit, used, known, ever_bytes=0)
        assert limit <= known.may_bytes <= highest


def test_memory_that_was_not_counted_when_the_limit_fell_is_not_kept() -> None:
    before = entitlement(0, 60 * GIB, 2 * GIB, None, 60 * GIB)
    kept = entitlement(SECOND, 4 * GIB, 60 * GIB, before, 60 * GIB, kept_bytes=9 * GIB)
    assert kept.may_bytes == 9 * GIB  # what was on its way then, though it took more meanwhile
    later = entitlement(GRACE_NS + 2 * SECOND, 4 * GIB, 60 * GIB, kept, 60 * GIB, 9 * GIB)
    assert later.may_bytes == 9 * GIB
    none = entitlement(SECOND, 4 * GIB, 60 * GIB, before, 60 * GIB, kept_bytes=0)
    assert none.may_bytes == 4 * GIB


def test_memory_that_the_driver_never_showed_is_not_kept() -> None:
    """Whatever was claimed when the limit fell."""
    known = entitlement(0, 60 * GIB, 2 * GIB, None, 60 * GIB)
    for number in range(1, 60):
        known = entitlement(number * SECOND, 4 * GIB, 2 * GIB, known, 60 * GIB, 60 * GIB)
    assert known.may_bytes == 4 * GIB


def share(permille: int, *, capped: bool = False, online: bool = False) -> Share:
    return Share(permille, capped=capped, online=online, priority=1)


def test_a_tenant_may_use_its_cap_or_the_share_that_active_others_leave() -> None:
    thirty, busy, idle = share(300), (share(400), True), (share(300), False)
    assert allowed_percent(share(300, capped=True), []) == 30
    assert allowed_percent(thirty, []) is None
    assert allowed_percent(thirty, [idle]) is None
    assert allowed_percent(thirty, [busy, idle]) == 60
    assert allowed_percent(thirty, [busy, (share(300), True)]) == 30
    assert allowed_percent(share(300, online=True), [busy]) is None
