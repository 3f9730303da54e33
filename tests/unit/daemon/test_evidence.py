# SPDX-License-Identifier: Apache-2.0
"""What a tenant surely has: never more than it may by a look that was torn, never less for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.audit.evidence import PERIOD_NS, Course, Figures, Said, Told, said
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.pages.account import Claim, Held

GIB = 1 << 30
A, B = Process(100, 1, 1, 7), Process(101, 2, 1, 8)
NOTHING = Said()


def of(**held: int) -> Said:
    """Return an account of A and B, in GiB."""
    who = {"a": A, "b": B}
    return Said(
        {
            (who[name].namespaced_pid, who[name].starttime): Told(size * GIB, 0)
            for name, size in held.items()
            if name != "managed"
        },
        held.get("managed", 0) * GIB,
    )


def course(*looks: tuple[list[tuple[Process, int]], Said, Said], step_ns: int = 0) -> list[Figures]:
    """Return the figures of looks at (what the driver says in GiB, account before, after)."""
    made, found = Course(0), []
    for number, (seen, before, after) in enumerate(looks):
        sizes = [(process, size * GIB) for process, size in seen]
        found.append(made.look((number + 1) * step_ns, sizes, before, after))
    return found


def sure(*looks: tuple[list[tuple[Process, int]], Said, Said]) -> list[int]:
    return [figures.sure_bytes // GIB for figures in course(*looks)]


def test_what_no_account_knows_counts_once_two_looks_agree() -> None:
    assert sure(*[([(A, 8)], NOTHING, NOTHING)] * 2) == [0, 8]
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(A, 3)], NOTHING, NOTHING)) == [0, 3]


def test_what_the_account_says_and_the_driver_too_counts() -> None:
    assert sure(*[([(A, 5)], of(a=5), of(a=5))] * 2) == [0, 5]
    assert sure(*[([(A, 8)], of(a=5), of(a=5))] * 2) == [0, 8]


def test_what_was_handed_over_while_the_driver_answered_counts_once() -> None:
    """A had 4 GiB when it was told of, and B the same 4 GiB a moment later."""
    torn = ([(A, 4), (B, 4)], of(a=4, b=0), of(a=0, b=4))
    back = ([(A, 4), (B, 4)], of(a=0, b=4), of(a=4, b=0))
    assert max(sure(torn, back, torn, back)) == 0
    alone = course(torn)[0]
    assert (alone.alone_bytes, alone.most_bytes) == (0, 8 * GIB)


def test_what_an_account_explained_a_moment_ago_is_explained() -> None:
    first = ([(A, 4), (B, 0)], of(a=4, b=0), of(a=4, b=0))
    over = ([(A, 0), (B, 4)], of(a=0, b=4), of(a=0, b=4))
    torn = ([(A, 4), (B, 4)], of(a=0, b=4), of(a=0, b=4))
    assert max(sure(first, over, torn, torn)) == 4


def test_a_process_that_was_not_there_before_does_not_count_yet() -> None:
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(B, 8)], NOTHING, NOTHING)) == [0, 0]
    again = Process(A.pid, 99, 1, A.namespaced_pid)
    assert sure(([(A, 8)], NOTHING, NOTHING), ([(again, 8)], NOTHING, NOTHING)) == [0, 0]


def test_managed_memory_counts_as_it_is_claimed() -> None:
    assert sure(*[([(A, 1)], of(a=1, managed=6), of(a=1, managed=6))] * 2) == [0, 7]
    torn = ([(A, 1)], of(a=1, managed=6), of(a=1))
    assert sure(torn, torn) == [0, 1]


def test_what_is_there_in_every_look_counts_whatever_is_claimed() -> None:
    """After a whole period: 6 seconds, and at 250 ms that is 24 looks."""
    explained = ([(A, 8)], of(a=20), of(a=0))
    found = course(*[explained] * 60, step_ns=250 * 10**6)
    late = [number for number, figures in enumerate(found) if figures.sure_bytes == 8 * GIB]
    assert late[0] * 250 * 10**6 <= 2 * PERIOD_NS
    assert found[late[0] - 1].sure_bytes == 0
    gap = course(*[explained] * 30, ([], of(), of()), *[explained] * 20, step_ns=250 * 10**6)
    assert gap[-1].sure_bytes == 0


def test_an_account_is_read_by_process_and_card() -> None:
    kinds = tuple(GIB if kind == abi.KIND_MANAGED else 0 for kind in range(abi.KINDS))
    held = Held(held_bytes=3 * GIB, kinds=kinds, imported_bytes=5 * GIB)
    claims = [Claim(number, 7, 1, 0, 0, (Held(), held)) for number in range(2)]
    found = said(claims, 1)
    assert found.told == {(7, 1): Told(4 * GIB, 10 * GIB)}
    assert found.managed_bytes == 2 * GIB
    assert said(claims, 0).own_bytes == 0


SIZES = st.integers(0, 16)
LOOK = st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES)


@given(st.lists(LOOK, max_size=30))
def test_it_is_never_more_than_the_driver_and_the_account_say_together(
    looks: list[tuple[int, int, int, int, int, int]],
) -> None:
    found = course(
        *(([(A, one), (B, two)], of(a=a, b=b), of(a=c, b=d)) for one, two, a, b, c, d in looks),
        step_ns=250 * 10**6,
    )
    for figures, (one, two, *_) in zip(found, looks, strict=True):
        assert 0 <= figures.sure_bytes <= figures.alone_bytes <= figures.most_bytes
        assert figures.sure_bytes <= (one + two) * GIB
