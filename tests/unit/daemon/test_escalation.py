# SPDX-License-Identifier: Apache-2.0
"""Escalation, evidence and slack: a tenant within its limit is never touched."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.audit.judge import (
    ABOVE_NS,
    WINDOW_NS,
    ClaimBounds,
    ClaimedUse,
    ProcessClaimedUse,
    ProcessMemory,
    ProvenUse,
    UseHistory,
    slack_bytes,
)
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.policy import (
    CHOICES,
    FROZEN_LOOKS,
    GRACE_NS,
    Action,
    Choice,
    Entitlement,
    EscalationState,
    QuotaSample,
    Share,
    allowed_percent,
    entitlement,
    next_step,
)

from .fakes import GIB, MIB

SECOND = 10**9


FAR = QuotaSample(9 * GIB, 4 * GIB, 64 * MIB)


NEAR = QuotaSample(4 * GIB + 200 * MIB, 4 * GIB, 64 * MIB)


SHORT = QuotaSample(9 * GIB, 4 * GIB, 64 * MIB, has_shortfall=True, shortfall_bytes=GIB)


UNDER = QuotaSample(4 * GIB + 64 * MIB, 4 * GIB, 64 * MIB)


def climb(
    choice: Choice,
    *samples: QuotaSample | None,
    state: EscalationState | None = None,
    step_ns: int = SECOND // 4,
) -> tuple[EscalationState, list[Action]]:
    """Return the end of a course of looks, and all that was done on the way."""
    done: list[Action] = []
    state = state or EscalationState()
    for number, sample in enumerate(samples):
        state, actions = next_step(number * step_ns, sample, state, choice)
        done += actions
    return state, done


LACKING = replace(NEAR, has_shortfall=True)
WARNED, FROZEN, KILLED = ["warn"], ["warn", "freeze"], ["warn", "freeze", "kill"]


@pytest.mark.parametrize(
    ("choice", "samples", "done"),
    [
        ("freeze", [FAR], []),
        ("freeze", [FAR] * 2, WARNED),
        ("freeze", [FAR] * 3, FROZEN),
        ("observe", [FAR] * 100, ["observe"]),
        ("kill", [FAR] * 9, KILLED),
        ("kill", [FAR] * 17, [*KILLED, "kill"]),  # it has survived: two seconds later
        ("kill", [NEAR] * 100, FROZEN),  # a slight excess
        ("kill", [LACKING] * 3, KILLED),
        ("freeze", [LACKING] * 30, FROZEN),
        ("freeze", [*[FAR] * 3, *[None] * 100], FROZEN),
        ("freeze", [*[FAR] * 3, *[UNDER] * 3], FROZEN),
        ("freeze", [*[FAR] * 3, *[UNDER] * 4], [*FROZEN, "thaw"]),
        ("warn", [*[FAR] * 2, *[UNDER] * 4], [*WARNED, "calm"]),
    ],
)
def test_each_step_follows_from_the_samples_and_the_operators_choice(
    choice: Choice, samples: list[QuotaSample | None], done: list[Action]
) -> None:
    assert climb(choice, *samples)[1] == done


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


def test_a_sample_without_figures_restarts_the_count() -> None:
    assert climb("kill", *[FAR, None] * 50)[1] == []
    assert climb("kill", FAR, FAR, *[None, FAR] * 50)[1] == ["warn"]


def test_an_operator_that_chooses_less_lets_it_go_on() -> None:
    state, _ = climb("freeze", FAR, FAR, FAR)
    assert next_step(SECOND, FAR, state, "warn")[1] == ("thaw",)


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


#: A limit that falls while more is used than it becomes.
FALLS = [(second, 8 * GIB if second < 10 else 4 * GIB, 7 * GIB) for second in range(20)]
FREED = [(second, 4 * GIB, 5 * GIB) for second in range(20, 40)]
IN_PROGRESS = [(10.0, 8 * GIB, 2 * GIB), (10.25, 4 * GIB, 2 * GIB), (10.5, 4 * GIB, 8 * GIB)]


@pytest.mark.parametrize(
    ("looks", "gib"),
    [
        ([*FALLS, *((second, 4 * GIB, 7 * GIB) for second in range(20, 60))], 7),
        ([*IN_PROGRESS, (30.0, 4 * GIB, 8 * GIB), (31.0, 4 * GIB, 8 * GIB)], 8),
        ([*FALLS, *FREED, (40, 4 * GIB, 9 * GIB)], 5),  # what was freed may not be taken again
        ([*FALLS, (20, 4 * GIB, 0), (21, 4 * GIB, 7 * GIB)], 7),  # an incomplete sample
    ],
    ids=["allocated", "in progress", "freed", "incomplete"],
)
def test_a_reduced_limit_leaves_allocated_memory(
    looks: list[tuple[float, int, int]], gib: int
) -> None:
    assert course(*looks).may_bytes == gib * GIB


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


A, B, C = Process(100, 1, 1, 7), Process(101, 2, 1, 8), Process(102, 3, 1, 9)


NOTHING = ClaimedUse()


ANY = ClaimBounds(4 * GIB)


STEP_NS = 250 * 10**6


def of(**held: int) -> ClaimedUse:
    """Return an account of A and B, in GiB."""
    managed = held.pop("managed", 0) * GIB
    who = {"a": A, "b": B, "c": C}
    keys = {name: (who[name].namespaced_pid, who[name].starttime) for name in held}
    return ClaimedUse({keys[n]: ProcessClaimedUse(held[n] * GIB, 0) for n in held}, managed)


def looks_of(
    *looks: tuple[list[tuple[Process, int]], ClaimedUse, ClaimedUse],
    step_ns: int = 0,
    bounds: ClaimBounds = ANY,
) -> list[ProvenUse]:
    """Return the figures of looks at (what the driver says in GiB, account before, after)."""
    made, found = UseHistory(0), []
    for number, (seen, before, after) in enumerate(looks):
        sizes = [(process, size * GIB) for process, size in seen]
        found.append(made.look((number + 1) * step_ns, sizes, (before, after), bounds))
    return found


def sure(*looks: tuple[list[tuple[Process, int]], ClaimedUse, ClaimedUse]) -> list[int]:
    return [figures.all.sure_bytes // GIB for figures in looks_of(*looks)]


def test_unclaimed_memory_counts_once_two_samples_agree() -> None:
    assert sure(*[([(A, 8)], NOTHING, NOTHING)] * 2) == [0, 8]
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(A, 3)], NOTHING, NOTHING)) == [0, 3]


def test_memory_handed_over_during_a_sample_counts_once() -> None:
    """A had 4 GiB when it was reported, and B the same 4 GiB a moment later."""
    torn = ([(A, 4), (B, 4)], of(a=4, b=0), of(a=0, b=4))
    back = ([(A, 4), (B, 4)], of(a=0, b=4), of(a=4, b=0))
    assert max(sure(torn, back, torn, back)) == 0
    alone = looks_of(torn)[0]
    assert (alone.all.alone_bytes, alone.all.most_bytes) == (0, 8 * GIB)


def test_a_process_that_was_not_there_before_does_not_count_yet() -> None:
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(B, 8)], NOTHING, NOTHING)) == [0, 0]
    again = Process(A.pid, 99, 1, A.namespaced_pid)
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(again, 8)], NOTHING, NOTHING)) == [0, 0]


def test_managed_memory_counts_as_it_is_claimed_and_as_the_card_has_it() -> None:
    look = ([(A, 1)], of(a=1, managed=6), of(a=1, managed=6))
    assert sure(*[look] * 2) == [0, 7]
    torn = ([(A, 1)], of(a=1, managed=6), of(a=1))
    assert sure(torn, torn) == [0, 1]
    elsewhere = looks_of(look, look, bounds=ClaimBounds(4 * GIB, unlisted_bytes=2 * GIB))[-1]
    assert (elsewhere.all.sure_bytes, elsewhere.all.most_bytes) == (3 * GIB, 7 * GIB)


def test_a_claim_explains_no_more_than_the_tenant_may_use() -> None:
    forged = ([(A, 60)], of(a=200), of(a=0))
    assert sure(forged, forged) == [0, 56]


def mapping(size: int, exported: int = 0) -> ClaimedUse:
    """Return claims by which A maps `size` GiB and B exports `exported`."""
    return ClaimedUse(
        {
            (A.namespaced_pid, A.starttime): ProcessClaimedUse(0, size * GIB),
            (B.namespaced_pid, B.starttime): ProcessClaimedUse(
                min(exported, 3) * GIB, 0, exported * GIB
            ),
        }
    )


def test_imports_explain_no_more_than_others_export() -> None:
    alone = ([(A, 60)], mapping(60), mapping(60))
    assert looks_of(alone, alone)[-1].listed.sure_bytes == 60 * GIB
    of_others = ClaimBounds(4 * GIB, exported_bytes=2 * GIB)
    assert looks_of(alone, alone, bounds=of_others)[-1].listed.sure_bytes == 58 * GIB
    claimed = ([(A, 60)], mapping(60, exported=60), mapping(60, exported=60))  # B claims to have 3
    assert looks_of(claimed, claimed)[-1].listed.sure_bytes == 57 * GIB


def test_memory_that_two_processes_map_counts_once_where_the_card_shows_it() -> None:
    look = ([(A, 3), (B, 3)], mapping(3, exported=3), mapping(3, exported=3))
    once = looks_of(
        *[look] * 60, step_ns=STEP_NS, bounds=ClaimBounds(4 * GIB, doubled_bytes=3 * GIB)
    )
    assert max(figures.listed.sure_bytes for figures in once) == 3 * GIB
    forged = looks_of(*[look] * 60, step_ns=STEP_NS, bounds=ClaimBounds(4 * GIB, doubled_bytes=0))
    assert forged[-1].listed.sure_bytes == 6 * GIB


EXPLAINED = ([(A, 3), (B, 3), (C, 3)], of(a=4, b=4, c=4), of(a=0, b=0, c=0))


def test_memory_that_is_there_most_of_the_time_counts_without_claims() -> None:
    """Three processes that each claim all that the tenant may use, in step with the samples."""
    found = looks_of(*[EXPLAINED] * 60, step_ns=STEP_NS)
    late = [number for number, one in enumerate(found) if one.listed.sure_bytes == 9 * GIB]
    assert (late[0] + 1) * STEP_NS == ABOVE_NS
    assert found[late[0] - 1].listed.sure_bytes == 0


def test_the_time_above_the_quota_counts_and_not_the_least_use() -> None:
    """A sawtooth: above the quota for 4.5 of every 5 seconds."""
    down = ([(A, 3), (B, 0), (C, 0)], of(a=4), of(a=4))
    teeth = [*[EXPLAINED] * 18, *[down] * 2] * 4
    found = [one.listed.sure_bytes for one in looks_of(*teeth, step_ns=STEP_NS)]
    first = next(number for number, size in enumerate(found) if size == 9 * GIB)
    assert first * STEP_NS <= WINDOW_NS
    half = looks_of(*[*[EXPLAINED] * 10, *[down] * 10] * 8, step_ns=STEP_NS)
    assert max(one.listed.sure_bytes for one in half) == 3 * GIB  # torn sums are no more than that


def test_use_from_before_the_limit_fell_does_not_count_as_above_it() -> None:
    made = UseHistory(0)
    for number in range(1, 41):
        may = ClaimBounds((9 if number <= 30 else 4) * GIB)
        size = 3 if number <= 30 else 1
        seen = [(process, size * GIB) for process in (A, B, C)]
        use = made.look(number * STEP_NS, seen, (of(a=9, b=9, c=9), of()), may)
        assert use.listed.sure_bytes == 0


CONTEXT = 400 * MIB


LEAST = 64 * MIB


def test_an_uncharged_context_is_slack_up_to_its_measured_size() -> None:
    bare = ProcessMemory(CONTEXT)
    assert slack_bytes(GIB, CONTEXT, [bare] * 3) == LEAST + 3 * CONTEXT
    assert slack_bytes(GIB, CONTEXT, [ProcessMemory(MIB)] * 100) == LEAST + 100 * MIB


BYTES = st.integers(0, 2 * GIB)


@st.composite
def honest(draw: st.DrawFn) -> tuple[int, list[ProcessMemory]]:
    """Return a limit, and processes that took no more than that but for contexts.

    All but contexts was charged within the limit. Contexts are charged before, afterwards, in part
    (what the daemon had measured by then is not charged again) or not yet, and differ in size.
    """
    buffers = draw(st.lists(BYTES, min_size=1, max_size=20))
    within = draw(st.integers(0, len(buffers)))  # so many were charged before
    limit = max(GIB, sum(buffers) + within * CONTEXT)
    made = []
    for number, size in enumerate(buffers):
        real = CONTEXT + draw(st.integers(-CONTEXT // 8, CONTEXT // 8))
        price = CONTEXT if number < within else draw(st.integers(0, CONTEXT))
        made.append(ProcessMemory(size + real, size + price, price))
    return limit, made


@given(honest())
def test_memory_of_contexts_is_never_a_bypass(case: tuple[int, list[ProcessMemory]]) -> None:
    limit, processes = case
    used = sum(one.driver_bytes for one in processes)
    assert used - limit <= slack_bytes(limit, CONTEXT, processes)
