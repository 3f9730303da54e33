# SPDX-License-Identifier: Apache-2.0
"""What cuCtxSetLimit makes a context hold more counts against the quota."""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer
from .simulator_figures import TRUTH, open_behind
from .tenant import MIB

LIMITS = (
    "STACK, FIFO, HEAP, PENDING = 0, 1, 2, 4",
    "def limit(which):",
    "    value = c_size_t()",
    "    call('cuCtxGetLimit', byref(value), which)",
    "    return value.value",
    "def set_limit(which, value): call('cuCtxSetLimit', which, c_size_t(value))",
)


@pytest.mark.parametrize("which", ["FIFO", "HEAP"])
def test_a_limit_grows_to_the_last_byte_and_gives_back_exactly(
    which: str, simulated: ProgramContainer
) -> None:
    said = open_behind(simulated).says(
        *LIMITS,
        *TRUTH,
        "start()",
        f"initial, taken = limit({which}), truth()",
        "kept = alloc(20 * MIB)",
        f"over = result_of(set_limit, {which}, initial + 80 * MIB + 1), limit({which}) - initial",
        f"last = result_of(set_limit, {which}, initial + 80 * MIB)",
        "full = memory()[0], result_of(alloc, 1), truth() - taken",
        f"set_limit({which}, initial + 30 * MIB)",
        "half = memory()[0], truth() - taken",
        f"set_limit({which}, initial // 2)",
        f"set_limit({which}, initial)",
        "free(kept)",
        "say(over, last, full, half, memory()[0], truth() - taken)",
    )
    assert said == [[2, 0], 0, [0, 2, 100 * MIB], [50 * MIB, 50 * MIB], 100 * MIB, 0]


def test_a_stack_is_charged_for_each_thread_that_a_card_holds(simulated: ProgramContainer) -> None:
    said = open_behind(simulated).says(
        *LIMITS,
        *TRUTH,
        "start()",
        "taken, multiprocessors, threads = truth(), c_int(), c_int()",
        "call('cuDeviceGetAttribute', byref(multiprocessors), 16, 0)",
        "call('cuDeviceGetAttribute', byref(threads), 39, 0)",
        "resident = multiprocessors.value * threads.value",
        "most = 100 * MIB // resident",
        "over = result_of(set_limit, STACK, 1024 + most + 1)",
        "set_limit(STACK, 1024 + most)",
        "charged = 100 * MIB - memory()[0]",
        "say(over, charged == most * resident, 0 <= truth() - taken - charged < 2 * MIB)",
    )
    assert said == [2, True, True]


def test_the_end_of_a_context_gives_its_limits_back(simulated: ProgramContainer) -> None:
    said = open_behind(simulated).says(
        *LIMITS,
        *TRUTH,
        "start()",
        "taken = truth()",
        "other = context()",
        "set_limit(HEAP, 38 * MIB)",
        "set_limit(FIFO, 28 * MIB)",
        "before = memory()[0]",
        "call('cuCtxDestroy_v2', other)",
        "context()",
        "say(before, memory()[0], truth() - taken)",
    )
    assert said == [50 * MIB, 100 * MIB, 0]


def test_limits_of_two_contexts_are_apart(simulated: ProgramContainer) -> None:
    said = simulated.says(
        *LIMITS,
        "first = start()",
        "set_limit(HEAP, 28 * MIB)",
        "second = context()",
        "set_limit(HEAP, 38 * MIB)",
        "call('cuCtxSetCurrent', first)",
        "set_limit(HEAP, 8 * MIB)",
        "say(memory()[0])",
    )
    assert said == [70 * MIB]


def test_the_primary_context_s_limits_end_with_it(simulated: ProgramContainer) -> None:
    said = simulated.says(
        *LIMITS,
        "call('cuInit', 0)",
        "handle = c_void_p()",
        "call('cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "call('cuCtxSetCurrent', handle)",
        "set_limit(HEAP, 58 * MIB)",
        "before = memory()[0]",
        "call('cuDevicePrimaryCtxReset_v2', 0)",
        "call('cuDevicePrimaryCtxRetain', byref(handle), 0)",
        "call('cuCtxSetCurrent', handle)",
        "say(before, memory()[0])",
    )
    assert said == [50 * MIB, 100 * MIB]


def test_the_size_that_the_driver_rounds_to_is_charged(fake: ProgramContainer) -> None:
    said = fake.says(
        *LIMITS,
        "start()",
        "set_limit(HEAP, 8 * MIB + 1)",
        "rounded = 100 * MIB - memory()[0]",
        "set_limit(HEAP, 90 * MIB)",  # it stops at 64
        "say(rounded, memory()[0])",
    )
    assert said == [65536, 44 * MIB]


def test_a_limit_that_the_driver_refuses_leaves_no_trace(fake: ProgramContainer) -> None:
    said = fake.says(
        *LIMITS,
        "start()",
        "set_limit(HEAP, 18 * MIB)",
        "os.environ['FAKE_CUDA_LIMIT'] = 'used'",
        "grown, shrunk = result_of(set_limit, HEAP, 38 * MIB), result_of(set_limit, HEAP, 8 * MIB)",
        "say(grown, shrunk, memory()[0])",
    )
    assert said == [1, 1, 90 * MIB]


def test_other_limits_are_not_charged_and_overflow_is_out_of_memory(
    simulated: ProgramContainer,
) -> None:
    said = simulated.says(
        *LIMITS,
        "none = result_of(set_limit, HEAP, 90 * MIB)",
        "start()",
        "set_limit(PENDING, 1 << 20)",
        "huge = [result_of(set_limit, which, (1 << 64) - 1) for which in (STACK, FIFO, HEAP)]",
        "say(none != 0, huge, memory()[0])",
    )
    assert said == [True, [2, 2, 2], 100 * MIB]
