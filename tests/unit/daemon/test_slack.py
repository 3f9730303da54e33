# SPDX-License-Identifier: Apache-2.0
"""What is no bypass above a limit, by what the driver measured and what was claimed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.audit.judge import ProcessMemory, slack_bytes

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 400 * MIB
LEAST = 64 * MIB


def charged(driver: int, claimed: int | None = None) -> ProcessMemory:
    """Return a process whose context is in its claims."""
    return ProcessMemory(driver, driver if claimed is None else claimed, CONTEXT)


def test_an_uncharged_context_is_slack_up_to_its_measured_size() -> None:
    bare = ProcessMemory(CONTEXT)
    assert slack_bytes(GIB, CONTEXT, [bare] * 3) == LEAST + 3 * CONTEXT
    assert slack_bytes(GIB, CONTEXT, [ProcessMemory(MIB)] * 100) == LEAST + 100 * MIB


SIZES = st.integers(0, 2 * GIB)


@st.composite
def honest(draw: st.DrawFn) -> tuple[int, list[ProcessMemory]]:
    """Return a limit, and processes that took no more than that but for contexts.

    All but contexts was charged within the limit. Contexts are charged before, afterwards, in part
    (what the daemon had measured by then is not charged again) or not yet, and differ in size.
    """
    buffers = draw(st.lists(SIZES, min_size=1, max_size=20))
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


@given(st.lists(st.tuples(SIZES, SIZES, st.integers(0, CONTEXT)), max_size=20), SIZES)
def test_whatever_is_claimed_slack_is_no_more_than_contexts_and_a_part_of_the_limit(
    processes: list[tuple[int, int, int]], limit: int
) -> None:
    made = [ProcessMemory(*one) for one in processes]
    found = slack_bytes(limit, CONTEXT, made)
    real = sum(min(CONTEXT, one.driver_bytes) for one in made)
    assert LEAST <= found <= 2 * real + CONTEXT + limit // 8 + max(LEAST, limit // 100)


def test_contexts_that_are_charged_give_no_slack() -> None:
    assert slack_bytes(GIB, CONTEXT, [charged(CONTEXT)] * 2) == LEAST
    assert slack_bytes(100 * GIB, CONTEXT, [charged(GIB)] * 20) == GIB
