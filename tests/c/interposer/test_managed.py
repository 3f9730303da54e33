# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Managed memory is charged on the card where it was allocated and on each that it is sent to."""

from __future__ import annotations

import pytest

from gpushare import abi

from .client import *
from .conftest import FAKE_UUIDS, FakeContainer, SimulatedContainer
from .container import ProgramContainer
from .inside import inside
from .paths import BATCHES, CARD_1, SENDS, send, send_batch

ON_HOST = c_uint64(HOST)
PREFERRED, ACCESSED_BY = 3, 5


@pytest.fixture
def two(simulated_container: SimulatedContainer) -> ProgramContainer:
    """A container with 100 and 50 MiB of two cards."""
    container = simulated_container(2, [0, 1])
    container.tenant.set_memory(50 * MIB, card=1)
    return container


@pytest.fixture
def fake_two(fake_container: FakeContainer) -> ProgramContainer:
    """As that, with a driver that moves nothing."""
    container = fake_container(FAKE_UUIDS, 100 * MIB)
    container.tenant.set_memory(50 * MIB, card=1)
    return container


def charges(container: ProgramContainer) -> list[int]:
    """Return what is charged of managed memory on both cards, in MiB."""
    return [container.tenant.kind(abi.KIND_MANAGED, card) // MIB for card in (0, 1)]


@pytest.mark.parametrize("name", SENDS)
@inside("two")
def test_a_buffer_is_charged_once_on_each_card_whatever_part_is_sent(
    two: ProgramContainer, name: str
) -> None:
    start()
    pointer = alloc_managed(40 * MIB)
    assert result_of(send, name, pointer, 400 * MIB) == 1  # the driver refuses
    assert charges(two) == [40, 0]
    send(name, pointer + 8 * MIB, 4 * MIB)
    assert charges(two) == [40, 40]
    send(name, pointer, 40 * MIB)
    assert result_of(send, name, pointer, 400 * MIB) == 1
    assert charges(two) == [40, 40]
    free(pointer)
    assert charges(two) == [0, 0]


@inside("two")
def test_what_is_sent_to_the_host_or_only_accessed_is_not_charged(two: ProgramContainer) -> None:
    start()
    where = c_uint64(alloc_managed(40 * MIB)), c_size_t(40 * MIB)
    call("cuMemPrefetchAsync", *where, -1, None)
    call("cuMemPrefetchAsync_v2", *where, ON_HOST, 0, None)
    call("cuMemAdvise", *where, PREFERRED, -1)
    call("cuMemAdvise_v2", *where, PREFERRED, ON_HOST)
    call("cuMemAdvise", *where, ACCESSED_BY, 1)
    call("cuMemAdvise_v2", *where, ACCESSED_BY, CARD_1)
    assert charges(two) == [40, 0]


@inside()
def test_managed_memory_beyond_the_quota_has_a_bound_of_its_own(
    simulated: ProgramContainer,
) -> None:
    """Of 100 MiB, only what is beyond the bound is taken, and programs see that."""
    simulated.tenant.set_u64(0, abi.GRANT_CARD_MANAGED_LIMIT_BYTES, 60 * MIB)
    start()
    assert result_of(alloc_managed, 161 * MIB) == OUT_OF_MEMORY
    first = alloc_managed(60 * MIB)
    assert memory() == (100 * MIB, 100 * MIB)
    alloc_managed(20 * MIB)
    assert memory() == (80 * MIB, 100 * MIB)
    assert result_of(alloc, 82 * MIB) == OUT_OF_MEMORY
    alloc(80 * MIB)
    assert memory() == (0, 100 * MIB)
    assert result_of(alloc_managed, 2 * MIB) == OUT_OF_MEMORY
    free(first)
    assert memory() == (20 * MIB, 100 * MIB)
    alloc(20 * MIB)
    alloc_managed(40 * MIB)
    assert result_of(alloc_managed, 2 * MIB) == OUT_OF_MEMORY


@pytest.mark.parametrize("name", BATCHES)
@inside("fake_two")
def test_a_batch_is_charged_by_each_range_s_location(fake_two: ProgramContainer, name: str) -> None:
    start()
    size = 10 * MIB
    pointers = [alloc_managed(size) for _ in range(6)]
    send_batch(name, pointers, size, [0, 2, 4])
    assert charges(fake_two) == [60, 20]
    pointers.append(alloc_managed(size))
    assert result_of(send_batch, name, pointers, size, [0, 1]) == OUT_OF_MEMORY  # none is sent
    assert charges(fake_two) == [70, 20]
    os.environ["FAKE_CUDA_FAIL"] = "1"
    assert result_of(send_batch, name, pointers, size, [0, 4]) == LAUNCH_FAILED
    assert charges(fake_two) == [70, 20]
    del os.environ["FAKE_CUDA_FAIL"]
    for pointer in pointers:
        free(pointer)
    assert charges(fake_two) == [0, 0]
    # Without ranges it is the driver's to judge.
    call(name, None, None, c_size_t(5), None, None, c_size_t(0), c_uint64(0), None)
