# SPDX-License-Identifier: Apache-2.0
"""What a tenant surely has: never more than it may by a look that was torn, never less for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.audit.judge import (
    ABOVE_NS,
    WINDOW_NS,
    ClaimBounds,
    ClaimedUse,
    ProcessClaimedUse,
    ProvenUse,
    UseHistory,
    claimed_use,
)
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.pages.status_page import MemoryUse, ProcessClaim

GIB = 1 << 30
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


def course(
    *looks: tuple[list[tuple[Process, int]], ClaimedUse, ClaimedUse],
    step_ns: int = 0,
    bounds: ClaimBounds = ANY,
) -> list[ProvenUse]:
    """Return the figures of looks at (what the driver says in GiB, account before, after)."""
    made, found = UseHistory(0), []
    for number, (seen, before, after) in enumerate(looks):
        sizes = [(process, size * GIB) for process, size in seen]
        found.append(made.look((number + 1) * step_ns, sizes, before, after, bounds))
    return found


def sure(*looks: tuple[list[tuple[Process, int]], ClaimedUse, ClaimedUse]) -> list[int]:
    return [figures.all.sure_bytes // GIB for figures in course(*looks)]


def test_unclaimed_memory_counts_once_two_samples_agree() -> None:
    assert sure(*[([(A, 8)], NOTHING, NOTHING)] * 2) == [0, 8]
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(A, 3)], NOTHING, NOTHING)) == [0, 3]


def test_memory_handed_over_during_a_sample_counts_once() -> None:
    """A had 4 GiB when it was reported, and B the same 4 GiB a moment later."""
    torn = ([(A, 4), (B, 4)], of(a=4, b=0), of(a=0, b=4))
    back = ([(A, 4), (B, 4)], of(a=0, b=4), of(a=4, b=0))
    assert max(sure(torn, back, torn, back)) == 0
    alone = course(torn)[0]
    assert (alone.all.alone_bytes, alone.all.most_bytes) == (0, 8 * GIB)


def test_memory_that_an_account_explained_a_moment_ago_is_explained() -> None:
    first = ([(A, 4), (B, 0)], of(a=4, b=0), of(a=4, b=0))
    over = ([(A, 0), (B, 4)], of(a=0, b=4), of(a=0, b=4))
    torn = ([(A, 4), (B, 4)], of(a=0, b=4), of(a=0, b=4))
    assert max(sure(first, over, torn, torn)) == 4


def test_a_process_that_was_not_there_before_does_not_count_yet() -> None:
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(B, 8)], NOTHING, NOTHING)) == [0, 0]
    again = Process(A.pid, 99, 1, A.namespaced_pid)
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(again, 8)], NOTHING, NOTHING)) == [0, 0]


def test_managed_memory_counts_as_it_is_claimed_and_as_the_card_has_it() -> None:
    look = ([(A, 1)], of(a=1, managed=6), of(a=1, managed=6))
    assert sure(*[look] * 2) == [0, 7]
    torn = ([(A, 1)], of(a=1, managed=6), of(a=1))
    assert sure(torn, torn) == [0, 1]
    elsewhere = course(look, look, bounds=ClaimBounds(4 * GIB, unlisted_bytes=2 * GIB))[-1]
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
    assert course(alone, alone)[-1].listed.sure_bytes == 60 * GIB
    of_others = ClaimBounds(4 * GIB, exported_bytes=2 * GIB)
    assert course(alone, alone, bounds=of_others)[-1].listed.sure_bytes == 58 * GIB
    claimed = ([(A, 60)], mapping(60, exported=60), mapping(60, exported=60))  # B claims to have 3
    assert course(claimed, claimed)[-1].listed.sure_bytes == 57 * GIB


def test_memory_that_two_processes_map_counts_once_where_the_card_shows_it() -> None:
    look = ([(A, 3), (B, 3)], mapping(3, exported=3), mapping(3, exported=3))
    once = course(*[look] * 60, step_ns=STEP_NS, bounds=ClaimBounds(4 * GIB, doubled_bytes=3 * GIB))
    assert max(figures.listed.sure_bytes for figures in once) == 3 * GIB
    forged = course(*[look] * 60, step_ns=STEP_NS, bounds=ClaimBounds(4 * GIB, doubled_bytes=0))
    assert forged[-1].listed.sure_bytes == 6 * GIB


EXPLAINED = ([(A, 3), (B, 3), (C, 3)], of(a=4, b=4, c=4), of(a=0, b=0, c=0))


def test_memory_that_is_there_most_of_the_time_counts_without_claims() -> None:
    """Three processes that each claim all that the tenant may use, in step with the samples."""
    found = course(*[EXPLAINED] * 60, step_ns=STEP_NS)
    late = [number for number, one in enumerate(found) if one.listed.sure_bytes == 9 * GIB]
    assert (late[0] + 1) * STEP_NS == ABOVE_NS
    assert found[late[0] - 1].listed.sure_bytes == 0


def test_the_time_above_the_quota_counts_and_not_the_least_use() -> None:
    """A sawtooth: above the quota for 4.5 of every 5 seconds."""
    down = ([(A, 3), (B, 0), (C, 0)], of(a=4), of(a=4))
    teeth = [*[EXPLAINED] * 18, *[down] * 2] * 4
    found = [one.listed.sure_bytes for one in course(*teeth, step_ns=STEP_NS)]
    first = next(number for number, size in enumerate(found) if size == 9 * GIB)
    assert first * STEP_NS <= WINDOW_NS
    half = course(*[*[EXPLAINED] * 10, *[down] * 10] * 8, step_ns=STEP_NS)
    assert max(one.listed.sure_bytes for one in half) == 3 * GIB  # torn sums are no more than that


def test_use_from_before_the_limit_fell_does_not_count_as_above_it() -> None:
    made = UseHistory(0)
    for number in range(1, 41):
        may = ClaimBounds((9 if number <= 30 else 4) * GIB)
        size = 3 if number <= 30 else 1
        seen = [(process, size * GIB) for process in (A, B, C)]
        use = made.look(number * STEP_NS, seen, of(a=9, b=9, c=9), of(), may)
        assert use.listed.sure_bytes == 0


def test_an_account_is_read_by_process_and_card() -> None:
    kinds = tuple(GIB if kind == abi.KIND_MANAGED else 0 for kind in range(abi.KINDS))
    held = MemoryUse(held_bytes=3 * GIB, kinds=kinds, imported_bytes=5 * GIB)
    claims = [ProcessClaim(number, 7, 1, 0, 0, (MemoryUse(), held)) for number in range(2)]
    found = claimed_use(claims, 1)
    assert found.by_process == {(7, 1): ProcessClaimedUse(4 * GIB, 10 * GIB)}
    assert found.managed_bytes == 2 * GIB
    assert claimed_use(claims, 0).by_process == {(7, 1): ProcessClaimedUse(0, 0)}


SIZES = st.integers(0, 16)
LOOK = st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES)


@given(st.lists(LOOK, max_size=30))
def test_the_evidence_never_exceeds_driver_and_claims_together(
    looks: list[tuple[int, int, int, int, int, int]],
) -> None:
    found = course(
        *(([(A, one), (B, two)], of(a=a, b=b), of(a=c, b=d)) for one, two, a, b, c, d in looks),
        step_ns=250 * 10**6,
    )
    for number, figures in enumerate(found):
        for use in (figures.listed, figures.all):
            assert 0 <= use.sure_bytes <= use.alone_bytes <= use.most_bytes
        most = max(one + two for one, two, *_ in looks[: number + 1])
        assert figures.listed.sure_bytes <= most * GIB
