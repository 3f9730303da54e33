# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""What is charged of linear memory beside its size: rounding, pitch, places, and other threads."""

from __future__ import annotations

import pytest

from .client import *
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


CALLS = {
    "cuMemAlloc_v2": (c_size_t(2 * MIB),),
    "cuMemAllocManaged": (c_size_t(2 * MIB), 1),
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
