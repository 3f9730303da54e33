# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Memory pools are charged what the driver holds for them, and never more than the quota.

The simulated driver's pools grow by 32 MiB at a time.
"""

from __future__ import annotations

import pytest

from .client import *
from .container import ProgramContainer
from .inside import inside

CHUNK = 32 * MIB


def keeping(pool: c_void_p) -> c_void_p:
    """Let `pool` keep what is freed."""
    pool_threshold(pool, KEEP_ALL)
    return pool


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@inside()
def test_a_pool_is_charged_as_it_grows_to_the_last_byte(
    simulated: ProgramContainer, suffix: str
) -> None:
    holds = begin(CHUNK)
    for size, chunks in ((1, 1), (CHUNK - 512, 1), (512, 2), (CHUNK, 3)):
        alloc_async(size, suffix)
        holds(chunks)
    # 4 MiB are left, and the pool takes 32: it gives them back.
    assert result_of(alloc_async, 1024, suffix) == 0  # what is left of a chunk
    assert result_of(alloc_async, CHUNK, suffix) == OUT_OF_MEMORY
    holds(3)
    simulated.tenant.set_memory(3 * CHUNK)
    for size in (CHUNK, 1 << 50, KEEP_ALL):
        assert result_of(alloc_async, size, suffix) == OUT_OF_MEMORY
    holds(3)


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@inside()
def test_freed_memory_is_released_where_the_program_waits(suffix: str) -> None:
    holds = begin(CHUNK)
    event = made("cuEventCreate", 0)
    call("cuEventRecord", event, None)
    alloc_async(CHUNK)
    waits: dict[str, tuple[object, ...]] = {
        f"cuStreamSynchronize{suffix}": (None,),
        "cuEventSynchronize": (event,),
        "cuCtxSynchronize": (),
        "cuCtxSynchronize_v2": (current(),),
    }
    for give in (free, lambda pointer: free_async(pointer, suffix)):
        for wait, where in waits.items():
            give(alloc_async(CHUNK))
            assert charged() == 2 * CHUNK
            call(wait, *where)
            holds(1)


@inside()
def test_a_trim_and_a_lower_threshold_give_back_exactly() -> None:
    holds = begin(CHUNK)
    pool = keeping(pool_default())
    _, *others = [alloc_async(CHUNK) for _ in range(3)]
    for pointer in others:
        free_async(pointer)
    synchronize()
    holds(3)
    pool_trim(pool, 2 * CHUNK)
    holds(2)
    pool_threshold(pool, 0)
    synchronize()
    holds(1)


@pytest.mark.parametrize("allocate", [alloc, alloc_managed, create, alloc_async])
@inside()
def test_a_pool_is_trimmed_before_an_allocation_is_refused(allocate: Callable[[int], int]) -> None:
    """As a card that is full has the driver do."""
    start()
    free_async(pool_alloc(keeping(pool_create()), 3 * CHUNK))
    synchronize()
    allocate(2 * CHUNK)
    assert charged() == 2 * CHUNK


@inside()
def test_a_split_pool_cannot_exceed_the_quota() -> None:
    """By the books it fits into what is kept, but no piece is large enough."""
    holds = begin(CHUNK)
    keeping(pool_default())
    pieces = [alloc_async(CHUNK // 2) for _ in range(4)]
    for piece in pieces[::2]:
        free_async(piece)
    assert [result_of(alloc_async, CHUNK) for _ in range(2)] == [0, OUT_OF_MEMORY]
    holds(3)


@pytest.mark.parametrize("place", [HOST, HOST_NUMA, None])
@inside()
def test_a_pool_of_the_host_is_not_charged(place: int | None) -> None:
    holds = begin(CHUNK)
    if place:
        pool = pool_create(location_type=place)
    else:
        pool = made("cuMemGetDefaultMemPool", (c_int * 2)(HOST, 0), 1)
    pool_alloc(pool, 70 * MIB)
    free_async(pool_alloc(pool, 70 * MIB, "_ptsz"))
    pool_trim(pool)
    pool_trim(pool_default())
    holds(0)
