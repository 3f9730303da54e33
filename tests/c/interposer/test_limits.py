# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""What cuCtxSetLimit makes a context hold more counts against the quota."""

from __future__ import annotations

import pytest

from .client import *
from .inside import inside


@pytest.mark.parametrize("which", [FIFO, HEAP])
@inside()
def test_a_limit_grows_to_the_last_byte_and_gives_back_exactly(which: int) -> None:
    start()
    initial, before = limit(which), taken()
    kept = alloc(20 * MIB)
    assert result_of(set_limit, which, initial + 80 * MIB + 1) == OUT_OF_MEMORY
    assert limit(which) == initial
    for mib in (80, 30):
        set_limit(which, initial + mib * MIB)
        assert charged() == taken() - before == (20 + mib) * MIB
    for value in (initial // 2, initial):
        set_limit(which, value)
        assert charged() == 20 * MIB
    free(kept)
    assert charged() == taken() - before == 0


@inside()
def test_a_stack_is_charged_for_each_thread_that_a_card_holds() -> None:
    start()
    before, multiprocessors, threads = taken(), c_int(), c_int()
    call("cuDeviceGetAttribute", byref(multiprocessors), 16, 0)
    call("cuDeviceGetAttribute", byref(threads), 39, 0)
    resident = multiprocessors.value * threads.value
    most = 100 * MIB // resident
    assert result_of(set_limit, STACK, 1024 + most + 1) == OUT_OF_MEMORY
    set_limit(STACK, 1024 + most)
    assert charged() == most * resident
    assert 0 <= taken() - before - charged() < 2 * MIB


@inside("fake")
def test_the_size_that_the_driver_sets_is_charged() -> None:
    start()
    set_limit(HEAP, 8 * MIB + 1)
    assert charged() == 65536  # it rounds
    set_limit(HEAP, 90 * MIB)
    assert charged() == 56 * MIB  # it stops at 64
    os.environ["FAKE_CUDA_LIMIT"] = "used"
    for value in (68 * MIB, 8 * MIB):  # it refuses
        assert result_of(set_limit, HEAP, value) == 1
    assert charged() == 56 * MIB
