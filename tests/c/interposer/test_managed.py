# SPDX-License-Identifier: Apache-2.0
"""Managed memory is charged on the card where it was allocated and on each that it is sent to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare import abi

from .conftest import FAKE_UUIDS, FakeContainer, ProgramContainer, SimulatedContainer
from .rank import Rank, ranks
from .tenant import MIB

CPU = -1
HOST, PREFERRED, ACCESSED_BY = 2, 3, 5
LOCATION = "c_uint64({type} | {id} << 32)"  # CUmemLocation, as it is passed by value
#: To card 1, by every call that sends memory there.
WAYS = {
    "cuMemPrefetchAsync": "{p}, {n}, 1, None",
    "cuMemPrefetchAsync_ptsz": "{p}, {n}, 1, None",
    "cuMemPrefetchAsync_v2": "{p}, {n}, {card}, 0, None",
    "cuMemPrefetchAsync_v2_ptsz": "{p}, {n}, {card}, 0, None",
    "cuMemAdvise": "{p}, {n}, 3, 1",
    "cuMemAdvise_v2": "{p}, {n}, 3, {card}",
}


@pytest.fixture
def two(simulated_container: SimulatedContainer) -> Iterator[Rank]:
    """A process with a context on card 0, of a container with 100 and 50 MiB of two cards."""
    container = simulated_container(2, [0, 1])
    container.tenant.set_memory(50 * MIB, card=1)
    with ranks(container, 1) as made:
        yield made[0]


def send(rank: Rank, way: str, pointer: str, size: int) -> int:
    card = LOCATION.format(type=1, id=1)
    words = WAYS[way].format(p=f"c_uint64({pointer})", n=f"c_size_t({size})", card=card)
    return int(rank.ask(f"result_of(call, {way!r}, {words})"))


def charged(container: ProgramContainer) -> list[int]:
    """Return what is charged of managed memory on both cards, in MiB."""
    return [container.tenant.kind(abi.KIND_MANAGED, card) // MIB for card in (0, 1)]


@pytest.mark.parametrize("way", WAYS)
def test_managed_memory_sent_to_another_card_is_charged_there_too(two: Rank, way: str) -> None:
    two.ask("alloc_managed(40 * MIB)", "p")
    assert charged(two.container) == [40, 0]
    assert send(two, way, "p + 8 * MIB", 4 * MIB) == 0
    assert charged(two.container) == [40, 40]
    assert send(two, way, "p", 40 * MIB) == 0
    assert charged(two.container) == [40, 40]
    two.ask("free(p)")
    assert charged(two.container) == [0, 0]


@pytest.mark.parametrize("way", WAYS)
def test_where_there_is_no_room_it_is_not_sent(two: Rank, way: str) -> None:
    two.ask("alloc_managed(60 * MIB)", "p")
    assert send(two, way, "p", 60 * MIB) == 2
    assert charged(two.container) == [60, 0]


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_sending_leaves_no_trace(two: Rank, way: str) -> None:
    two.ask("alloc_managed(40 * MIB)", "p")
    assert send(two, way, "p", 400 * MIB) == 1
    assert charged(two.container) == [40, 0]
    assert send(two, way, "p", 40 * MIB) == 0
    assert send(two, way, "p", 400 * MIB) == 1
    assert charged(two.container) == [40, 40]


def test_managed_memory_sent_to_the_host_or_only_accessed_is_not_charged(two: Rank) -> None:
    two.ask("alloc_managed(40 * MIB)", "p")
    where = "c_uint64(p), c_size_t(40 * MIB)"
    host = LOCATION.format(type=HOST, id=0)
    card = LOCATION.format(type=1, id=1)
    calls = (
        f"call('cuMemPrefetchAsync', {where}, {CPU}, None)",
        f"call('cuMemPrefetchAsync_v2', {where}, {host}, 0, None)",
        f"call('cuMemAdvise', {where}, {PREFERRED}, {CPU})",
        f"call('cuMemAdvise_v2', {where}, {PREFERRED}, {host})",
        f"call('cuMemAdvise', {where}, {ACCESSED_BY}, 1)",
        f"call('cuMemAdvise_v2', {where}, {ACCESSED_BY}, {card})",
    )
    for line in calls:
        assert two.ask(line) is None
    assert charged(two.container) == [40, 0]


def test_it_ends_on_all_cards_with_its_context(two: Rank) -> None:
    two.ask("[context() and 0]")
    two.ask("alloc_managed(40 * MIB)", "p")
    assert send(two, "cuMemPrefetchAsync", "p", 40 * MIB) == 0
    assert charged(two.container) == [40, 40]
    two.ask("[c := c_void_p(), call('cuCtxGetCurrent', byref(c)), call('cuCtxDestroy_v2', c)][1]")
    assert charged(two.container) == [0, 0]


def test_managed_memory_beyond_the_quota_has_a_bound_of_its_own(two: Rank) -> None:
    """Of 100 MiB, only what is beyond the bound is taken, and programs see that."""
    tenant = two.container.tenant
    tenant.set_u64(0, abi.GRANT_CARD_MANAGED_LIMIT_BYTES, 60 * MIB)
    free, total = two.ask("memory()")
    assert two.ask("result_of(alloc_managed, 161 * MIB)") == 2
    two.ask("alloc_managed(60 * MIB)", "p")
    assert two.ask("memory()") == [free, total]
    two.ask("alloc_managed(20 * MIB)", "q")
    assert charged(two.container) == [80, 0]
    assert two.ask("memory()") == [free - 20 * MIB, total]
    assert two.ask(f"result_of(alloc, {free} - 18 * MIB)") == 2
    two.ask(f"alloc({free} - 20 * MIB)", "r")
    assert two.ask("memory()") == [0, total]
    assert two.ask("result_of(alloc_managed, 2 * MIB)") == 2
    two.ask("free(p)")
    assert two.ask("memory()") == [20 * MIB, total]
    two.ask("alloc(20 * MIB)", "s")
    two.ask("alloc_managed(40 * MIB)", "t")
    assert two.ask("result_of(alloc_managed, 2 * MIB)") == 2


def test_the_bound_is_shared_by_the_processes_of_a_container(
    simulated_container: SimulatedContainer,
) -> None:
    container = simulated_container(1, [0])
    container.tenant.set_u64(0, abi.GRANT_CARD_MANAGED_LIMIT_BYTES, 60 * MIB)
    with ranks(container, 2) as (one, other):
        one.ask("alloc_managed(40 * MIB)", "p")
        free = other.ask("memory()")[0]
        other.ask("alloc_managed(40 * MIB)", "q")
        assert one.ask("memory()")[0] == free - 20 * MIB
        one.kill()
        # Together 160 MiB, of which 60 are beyond the quota: all that the dead process had is free.
        other.ask("alloc_managed(120 * MIB)", "r")
        assert other.ask("result_of(alloc, 1)") == 2


BATCHES = [
    f"cuMem{what}BatchAsync{suffix}"
    for what in ("Prefetch", "DiscardAndPrefetch")
    for suffix in ("", "_ptsz")
]


def send_batch(function: str, starts: list[int]) -> str:
    """Return the call that sends `p`, buffers of 10 MiB, to cards 0, 1, ... from `starts` on."""
    count = len(starts)
    words = (
        "(c_uint64 * len(p))(*p)",
        "(c_size_t * len(p))(*[10 * MIB] * len(p))",
        "c_size_t(len(p))",
        f"(c_uint64 * {count})(*[1 | n % 2 << 32 for n in range({count})])",
        f"(c_size_t * {count})(*{starts})",
        f"c_size_t({count}), c_uint64(0), None",
    )
    return f"result_of(call, {function!r}, {', '.join(words)})"


@pytest.fixture
def fake_two(fake_container: FakeContainer) -> Iterator[Rank]:
    """A process of a container with 100 and 50 MiB of two cards, whose driver moves nothing."""
    container = fake_container(FAKE_UUIDS, 100 * MIB)
    container.tenant.set_memory(50 * MIB, card=1)
    with ranks(container, 1) as made:
        yield made[0]


@pytest.mark.parametrize("function", BATCHES)
def test_a_batch_is_charged_by_each_range_s_location(fake_two: Rank, function: str) -> None:
    fake_two.ask("[alloc_managed(10 * MIB) for _ in range(6)]", "p")
    assert fake_two.ask(send_batch(function, [0, 2, 4])) == 0
    assert charged(fake_two.container) == [60, 20]
    fake_two.ask("[free(one) for one in p]")
    assert charged(fake_two.container) == [0, 0]


@pytest.mark.parametrize("function", BATCHES)
def test_a_batch_of_which_one_does_not_fit_is_refused_whole(fake_two: Rank, function: str) -> None:
    fake_two.ask("[alloc_managed(10 * MIB) for _ in range(7)]", "p")
    assert fake_two.ask(send_batch(function, [0, 1])) == 2
    assert charged(fake_two.container) == [70, 0]


@pytest.mark.parametrize("function", BATCHES)
def test_a_failed_batch_keeps_the_batches_sent_before(fake_two: Rank, function: str) -> None:
    fake_two.ask("[alloc_managed(10 * MIB) for _ in range(4)]", "p")
    fake_two.ask(send_batch(function, [0, 3]))
    fake_two.ask("os.environ.__setitem__('FAKE_CUDA_FAIL', '1')")
    assert fake_two.ask(send_batch(function, [0, 1])) == 719
    assert charged(fake_two.container) == [40, 10]


@pytest.mark.parametrize("function", BATCHES)
def test_a_batch_without_ranges_is_the_driver_s_to_judge(fake_two: Rank, function: str) -> None:
    nothing = f"result_of(call, {function!r}, None, None, c_size_t(5), None, None, c_size_t(0)"
    assert fake_two.ask(f"{nothing}, c_uint64(0), None)") == 0
