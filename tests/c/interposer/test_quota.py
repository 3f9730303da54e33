# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""What is charged of linear memory beside its size: rounding, pitch, places, and other threads."""

from __future__ import annotations

import pytest

from .client import *
from .container import ProgramContainer
from .inside import inside


@inside("fake")
def test_a_failed_free_keeps_the_charge() -> None:
    start()
    alloc(MIB)
    assert (result_of(free, 12345), result_of(free, 0), charged()) == (1, 1, MIB)


def pitched(width: int, height: int) -> tuple[int, int]:
    """(pointer, pitch)"""
    pointer, pitch = c_uint64(), c_size_t()
    arguments = (byref(pointer), byref(pitch), c_size_t(width), c_size_t(height), 4)
    call("cuMemAllocPitch_v2", *arguments)
    return pointer.value, pitch.value


@inside("container")
def test_pitch_is_charged_as_the_driver_chose_it() -> None:
    start()
    pointer, pitch = pitched(100, 1024)
    assert charged() == pitch * 1024
    free(pointer)
    assert charged() == 0


@inside("fake")
def test_a_pitch_that_does_not_fit_is_refused_and_freed() -> None:
    start()
    assert result_of(pitched, 512, 100 * 1024) == OUT_OF_MEMORY
    assert (cu.fake_live(), charged()) == (0, 0)


@inside("fake")
def test_sizes_that_overflow_are_out_of_memory() -> None:
    start()
    assert result_of(alloc, (1 << 64) - 1) == result_of(pitched, 1 << 40, 1 << 40) == OUT_OF_MEMORY


@inside("fake")
def test_memory_of_the_host_is_not_charged_and_of_any_other_kind_is_a_card_s() -> None:
    start()
    for kind in (2, HOST_NUMA, 4):
        create(400 * MIB, kind)
    assert charged() == 0
    for kind in (5, 6, 77):
        assert result_of(create, 102 * MIB, kind) == OUT_OF_MEMORY
        create(MIB, kind)
    assert charged() == 3 * MIB


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@inside("fake")
def test_a_captured_stream_allocates_and_frees_nothing(suffix: str) -> None:
    start()
    outside = alloc_async(30 * MIB)
    os.environ["FAKE_CUDA_CAPTURES"] = "64"
    stream = c_void_p(64)
    node = alloc_async(60 * MIB, suffix, stream)
    for pointer in (node, outside):
        call(f"cuMemFreeAsync{suffix}", c_uint64(pointer), stream)
    assert charged() == 30 * MIB
    del os.environ["FAKE_CUDA_CAPTURES"]
    alloc_async(60 * MIB, suffix, stream)
    assert charged() == 90 * MIB


@inside("container")
def test_without_a_context_the_driver_s_error_comes_through(container: ProgramContainer) -> None:
    call("cuInit", 0)
    assert result_of(alloc, MIB) == result_of(memory) == 201
    assert container.tenant.used() == (0, 0)


@inside()
def test_a_resize_is_seen_at_once(simulated: ProgramContainer) -> None:
    simulated.tenant.set_memory(30 * MIB)
    start()
    assert result_of(alloc, 40 * MIB) == OUT_OF_MEMORY
    simulated.tenant.set_memory(50 * MIB)
    alloc(40 * MIB)
    assert memory() == (10 * MIB, 50 * MIB)
    total = c_size_t()
    call("cuDeviceTotalMem_v2", byref(total), 0)
    assert total.value == 50 * MIB


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 17 * MIB + 12345])
@inside()
def test_a_large_buffer_is_charged_as_the_driver_rounds_it(size: int) -> None:
    start()
    before = taken()
    pointer = alloc(size)
    assert charged() == taken() - before >= size
    free(pointer)
    assert charged() == taken() - before == 0


@inside()
def test_of_small_buffers_less_than_a_block_is_not_charged() -> None:
    """The block that they share is the driver's to fill; what is free of it is overhead."""
    start()
    before = taken()
    for size in (1, 512, 513, 100_000, MIB - 1, MIB):
        for _ in range(10):
            alloc(size)
        assert 0 <= taken() - before - charged() < 2 * MIB


CALLS = {
    "cuMemAlloc_v2": (c_size_t(2 * MIB),),
    "cuMemAllocManaged": (c_size_t(2 * MIB), 1),
    "cuMemAllocAsync": (c_size_t(2 * MIB), None),
    "cuMemAllocPitch_v2": (byref(c_size_t()), c_size_t(MIB), c_size_t(2), 4),
}


@pytest.mark.parametrize("name", CALLS)
@inside("fake")
def test_nothing_is_won_by_overwriting_what_a_call_has_returned(name: str) -> None:
    start()
    large, pointer = alloc(40 * MIB), c_uint64()
    meanwhile(lambda: setattr(pointer, "value", large))
    call(name, byref(pointer), *CALLS[name])
    assert charged() == 42 * MIB


@inside("fake")
def test_nothing_is_won_by_changing_what_a_call_reads() -> None:
    start()
    pitch, properties = c_size_t(), Properties(1, 0, HOST_NUMA, 0, None, 0)
    meanwhile(lambda: setattr(pitch, "value", 512))
    number("cuMemAllocPitch_v2", byref(pitch), c_size_t(MIB), c_size_t(2), 4)
    assert charged() == 2 * MIB
    meanwhile(lambda: setattr(properties, "location_type", DEVICE))
    number("cuMemCreate", c_size_t(40 * MIB), byref(properties), c_uint64(0))
    assert c_int.in_dll(behind.loaded(), "fake_location").value != DEVICE
    assert charged() == 2 * MIB
