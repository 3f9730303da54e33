# SPDX-License-Identifier: Apache-2.0
"""The audit's ladder: who is under what he may have is never touched, and no step comes early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy import ladder
from gpushare.daemon.policy.entitlement import GRACE_NS, Entitlement, entitled
from gpushare.daemon.policy.ladder import CHOICES, Action, Choice, Sample, State, decide

GIB = 1 << 30
MIB = 1 << 20
MS = 10**6
SECOND = 10**9
FAR = Sample(9 * GIB, 4 * GIB, 64 * MIB)
NEAR = Sample(4 * GIB + 200 * MIB, 4 * GIB, 64 * MIB)
UNDER = Sample(4 * GIB + 64 * MIB, 4 * GIB, 64 * MIB)


def climb(
    choice: Choice, *samples: Sample | None, state: State | None = None, step_ns: int = 250 * MS
) -> tuple[State, list[Action]]:
    """Return the end of a course of looks, and all that was done on the way."""
    done: list[Action] = []
    state = state or State()
    for number, sample in enumerate(samples):
        state, actions = decide(number * step_ns, sample, state, choice)
        done += actions
    return state, done


def test_it_is_seen_at_the_second_look_and_frozen_at_the_third() -> None:
    assert climb("freeze", FAR) == (State(looks=1, grave_since_ns=0), [])
    assert climb("freeze", FAR, FAR)[1] == ["warn"]
    assert climb("freeze", FAR, FAR, FAR)[1] == ["warn", "freeze"]
    assert climb("freeze", *[FAR] * 100)[1] == ["warn", "freeze"]


def test_the_operators_choice_is_as_far_as_it_goes() -> None:
    assert climb("observe", *[FAR] * 100)[1] == ["observe"]
    assert climb("warn", *[FAR] * 100)[1] == ["warn"]
    assert climb("kill", *[FAR] * 9)[1] == ["warn", "freeze", "kill"]


def test_nobody_is_killed_before_two_seconds_are_over() -> None:
    assert climb("kill", *[FAR] * 8)[1] == ["warn", "freeze"]
    assert climb("kill", *[FAR] * 9)[1] == ["warn", "freeze", "kill"]


def test_who_is_a_little_above_is_frozen_and_not_killed() -> None:
    assert climb("kill", *[NEAR] * 100)[1] == ["warn", "freeze"]


def test_a_little_above_is_enough_where_another_lacks_what_it_was_promised() -> None:
    lacking = Sample(NEAR.used_bytes, NEAR.may_bytes, NEAR.slack_bytes, lacks=True)
    assert climb("kill", *[lacking] * 3)[1] == ["warn", "freeze", "kill"]
    assert climb("freeze", *[lacking] * 30)[1] == ["warn", "freeze"]


def test_who_does_not_end_is_killed_again_two_seconds_later() -> None:
    assert climb("kill", *[FAR] * 17)[1] == ["warn", "freeze", "kill", "kill"]


def test_a_look_that_says_nothing_begins_the_count_anew() -> None:
    assert climb("kill", *[FAR, None] * 50)[1] == []
    assert climb("kill", FAR, FAR, *[None, FAR] * 50)[1] == ["warn"]


def test_what_was_done_stays_while_nobody_knows() -> None:
    state, done = climb("freeze", FAR, FAR, FAR, *[None] * 100)
    assert (state.level, done) == ("frozen", ["warn", "freeze"])


def test_who_has_come_down_goes_on_after_four_looks() -> None:
    assert climb("freeze", FAR, FAR, FAR, *[UNDER] * 3)[1] == ["warn", "freeze"]
    assert climb("freeze", FAR, FAR, FAR, *[UNDER] * 4)[1] == ["warn", "freeze", "thaw"]
    assert climb("warn", FAR, FAR, *[UNDER] * 4)[1] == ["warn", "calm"]


def test_a_raised_quota_lets_it_go_on() -> None:
    raised = Sample(FAR.used_bytes, FAR.used_bytes, FAR.slack_bytes)
    assert climb("freeze", FAR, FAR, FAR, *[raised] * 4)[1] == ["warn", "freeze", "thaw"]


def test_an_operator_that_chooses_less_lets_it_go_on() -> None:
    state, _ = climb("freeze", FAR, FAR, FAR)
    assert decide(SECOND, FAR, state, "warn")[1] == ("thaw",)


def test_who_was_let_go_on_has_a_minute() -> None:
    frozen, _ = climb("freeze", FAR, FAR, FAR)
    spared = ladder.resumed(SECOND, frozen)
    state, done = climb("freeze", *[FAR] * 244, state=spared)  # to 60.75 s
    assert (state.level, done) == ("seen", [])
    state, done = climb("freeze", *[FAR] * 245, state=spared)
    assert (state.level, done) == ("frozen", ["freeze"])


def test_the_slack_grows_with_contexts_and_with_the_quota() -> None:
    assert ladder.slack(4 * GIB, 500 * MIB, 0) == 64 * MIB
    assert ladder.slack(100 * GIB, 500 * MIB, 2) == 1000 * MIB + GIB


SIZES = st.integers(0, 16 * GIB)
SAMPLES = st.none() | st.builds(Sample, SIZES, SIZES, st.integers(0, GIB), st.booleans())
CHOICE = st.sampled_from(CHOICES)


@given(st.lists(SAMPLES, max_size=40), CHOICE, st.integers(1, SECOND))
def test_whatever_comes_nobody_is_touched_at_a_look_at_which_he_is_not_above(
    samples: list[Sample | None], choice: Choice, step_ns: int
) -> None:
    state = State()
    for number, sample in enumerate(samples):
        state, actions = decide(number * step_ns, sample, state, choice)
        above = sample is not None and sample.used_bytes > sample.may_bytes + sample.slack_bytes
        assert above or not {"observe", "warn", "freeze", "kill"}.intersection(actions)


@given(st.lists(SAMPLES, max_size=40), CHOICE, st.integers(1, SECOND))
def test_no_step_is_left_out_and_none_beyond_the_choice_is_taken(
    samples: list[Sample | None], choice: Choice, step_ns: int
) -> None:
    may = {"observe": {"observe"}, "warn": {"warn"}, "freeze": {"warn", "freeze"}}
    allowed = may.get(choice, {"warn", "freeze", "kill"}) | {"thaw", "calm"}
    state, above = State(), 0
    for number, sample in enumerate(samples):
        before = state.level
        state, actions = decide(number * step_ns, sample, state, choice)
        above = above + 1 if sample is not None and sample.over_bytes else 0
        assert allowed.issuperset(actions)
        if "freeze" in actions:
            assert above >= ladder.FROZEN_LOOKS
            assert before == "seen" or "warn" in actions
        if "kill" in actions:
            assert before in {"frozen", "killed"} or "freeze" in actions


@given(st.lists(st.tuples(SAMPLES, st.integers(0, SECOND)), max_size=40))
def test_who_is_never_above_is_never_anything(looks: list[tuple[Sample | None, int]]) -> None:
    now, state = 0, State()
    for sample, step in looks:
        now += step
        innocent = sample and Sample(
            min(sample.used_bytes, sample.may_bytes + sample.slack_bytes),
            sample.may_bytes,
            sample.slack_bytes,
            sample.lacks,
        )
        state, actions = decide(now, innocent, state, "kill")
        assert (state.level, actions) == ("quiet", ())


def course(*looks: tuple[float, int, int]) -> Entitlement:
    """Return what comes of looks at (seconds, limit, used)."""
    known: Entitlement | None = None
    for seconds, limit, used in looks:
        known = entitled(int(seconds * SECOND), limit, used, known, ever_bytes=0)
    assert known is not None
    return known


def test_a_limit_that_falls_leaves_what_was_taken() -> None:
    """Lent memory that is lent to another, and a quota that shrinks below what is used."""
    looks = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(60)]
    assert course(*looks).may_bytes == 7 * GIB


def test_what_is_on_its_way_when_the_limit_falls_is_not_held_against_it() -> None:
    looks = [(10.0, 8 * GIB, 2 * GIB), (10.25, 4 * GIB, 2 * GIB), (10.5, 4 * GIB, 8 * GIB)]
    assert course(*looks, (30.0, 4 * GIB, 8 * GIB), (31.0, 4 * GIB, 8 * GIB)).may_bytes == 8 * GIB


def test_what_was_freed_since_may_not_be_taken_again() -> None:
    looks = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(20)]
    freed = [(second, 4 * GIB, 5 * GIB) for second in range(20, 40)]
    assert course(*looks, *freed).may_bytes == 5 * GIB
    assert course(*looks, *freed, (40, 4 * GIB, 9 * GIB)).may_bytes == 5 * GIB


def test_one_look_that_misses_a_process_takes_nothing_away() -> None:
    looks = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(20)]
    assert course(*looks, (20, 4 * GIB, 0), (21, 4 * GIB, 7 * GIB)).may_bytes == 7 * GIB


def test_who_is_seen_first_may_have_what_it_was_ever_allowed() -> None:
    first = entitled(0, 4 * GIB, 6 * GIB, None, ever_bytes=8 * GIB)
    assert first.may_bytes == 8 * GIB
    later = entitled(2 * GRACE_NS, 4 * GIB, 6 * GIB, first, ever_bytes=8 * GIB)
    again = entitled(4 * GRACE_NS, 4 * GIB, 6 * GIB, later, ever_bytes=8 * GIB)
    assert again.may_bytes == 6 * GIB


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 16), st.integers(0, 16)), max_size=40
    )
)
def test_nobody_may_have_less_than_its_limit_or_more_than_it_ever_was(
    looks: list[tuple[int, int, int]],
) -> None:
    now, known, highest = 0, None, 0
    for step, limit, used in looks:
        now, highest = now + step, max(highest, limit)
        known = entitled(now, limit, used, known, ever_bytes=0)
        assert limit <= known.may_bytes <= highest
