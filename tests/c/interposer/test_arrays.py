# SPDX-License-Identifier: Apache-2.0
"""Arrays count against the quota at what block-linear memory takes, however they are made."""

from __future__ import annotations

import sys

import pytest

from gpushare import abi

from .conftest import ProgramContainer, program
from .simulator_figures import TRUTH, open_behind
from .tenant import MIB

ARRAYS = (
    "class Old(ctypes.Structure):",
    "    _fields_ = [(n, c_uint) for n in ('w', 'h', 'format', 'channels')]",
    "class Old3D(ctypes.Structure):",
    "    _fields_ = [(n, c_uint) for n in ('w', 'h', 'd', 'format', 'channels', 'flags')]",
    "class New(ctypes.Structure):",
    "    _fields_ = [('w', c_size_t), ('h', c_size_t), ('format', c_uint), ('channels', c_uint)]",
    "class New3D(ctypes.Structure):",
    "    _fields_ = [(n, c_size_t) for n in ('w', 'h', 'd')] + [",
    "        (n, c_uint) for n in ('format', 'channels', 'flags')]",
    "FLOAT, LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x20, 1, 4, 0x40, 0x80",
    "def made(name, descriptor, *more):",
    "    handle = c_void_p()",
    "    call(name, byref(handle), byref(descriptor), *more)",
    "    return handle",
    # `rows` rows of 4 KiB
    "def array_old(rows): return made('cuArrayCreate', Old(1024, rows, FLOAT, 1))",
    "def array_old_3d(rows): return made('cuArray3DCreate', Old3D(1024, rows, 0, FLOAT, 1, 0))",
    "def array(rows): return made('cuArrayCreate_v2', New(1024, rows, FLOAT, 1))",
    "def array_3d(rows, depth=0, flags=0):",
    "    return made('cuArray3DCreate_v2', New3D(1024, rows, depth, FLOAT, 1, flags))",
    "def mipmap(rows, depth=0, flags=0, levels=1):",
    "    descriptor = New3D(1024, rows, depth, FLOAT, 1, flags)",
    "    return made('cuMipmappedArrayCreate', descriptor, levels)",
    "def destroy(array): call('cuArrayDestroy', array)",
    "def destroy_mipmap(array): call('cuMipmappedArrayDestroy', array)",
    *TRUTH,
    "ROWS = MIB // 4096",
)
WAYS = ("array_old", "array_old_3d", "array", "array_3d", "mipmap")


@pytest.fixture
def arrays(simulated: ProgramContainer) -> ProgramContainer:
    return open_behind(simulated)


@pytest.mark.parametrize("way", WAYS)
def test_an_array_fits_to_the_last_byte_and_goes_back_exactly(
    way: str, arrays: ProgramContainer
) -> None:
    end = "destroy_mipmap" if way == "mipmap" else "destroy"
    said = arrays.says(
        *ARRAYS,
        "start()",
        f"over = result_of({way}, 101 * ROWS)",
        f"whole = {way}(100 * ROWS)",
        "full = memory()[0]",
        f"more = [result_of({way}, 1), result_of(alloc, 1)]",
        f"{end}(whole)",
        "say(over, full, more, memory()[0])",
    )
    assert said == [2, 0, [2, 2], 100 * MIB]


@pytest.mark.parametrize(
    "making",
    [
        "array_3d(512)",
        "array_3d(512, 5, LAYERED)",
        "array_3d(512, 10)",
        "array_3d(1024, 6, CUBEMAP)",
        "mipmap(1024, levels=11)",
        "mipmap(1024, 6, CUBEMAP, 11)",
        "mipmap(512, 8, 0, 99)",
        "made('cuArray3DCreate_v2', New3D(1000, 1000, 0, 0x10, 4, 0))",
        "made('cuArrayCreate_v2', New(3 << 15, 0, 0x01, 4))",
    ],
)
def test_the_charge_is_the_drivers_use(making: str, arrays: ProgramContainer) -> None:
    said = arrays.says(
        *ARRAYS,
        "start()",
        "alloc(MIB)",  # a block for small allocations is there from now on
        "charged, taken = memory()[0], truth()",
        f"handle = {making}",
        "say(charged - memory()[0], truth() - taken)",
    )
    charged, taken = said
    assert isinstance(charged, int)
    assert isinstance(taken, int)
    assert charged > 0
    granularity = 2 * MIB
    assert taken in {-(-charged // granularity) * granularity, 0 if charged <= MIB else None}


def test_a_level_of_a_mipmap_is_no_array_of_its_own(arrays: ProgramContainer) -> None:
    said = arrays.says(
        *ARRAYS,
        "start()",
        "whole = mipmap(1024, levels=3)",
        "level = c_void_p()",
        "call('cuMipmappedArrayGetLevel', byref(level), whole, 1)",
        "before = memory()[0]",
        "refused = result_of(destroy, level)",
        "say(refused != 0, before == memory()[0], result_of(destroy_mipmap, whole), memory()[0])",
    )
    assert said == [True, True, 0, 100 * MIB]


def test_the_end_of_a_context_gives_its_arrays_back(arrays: ProgramContainer) -> None:
    said = arrays.says(
        *ARRAYS,
        "start()",
        "other = context()",
        "array(30 * ROWS), mipmap(20 * ROWS)",
        "before = memory()[0]",
        "call('cuCtxDestroy_v2', other)",
        "context()",
        "say(before, memory()[0])",
    )
    assert said == [50 * MIB, 100 * MIB]


def test_a_failed_driver_call_leaves_no_trace(arrays: ProgramContainer) -> None:
    said = arrays.says(
        *ARRAYS,
        "start()",
        "three = New(1024, 1024, FLOAT, 3)",  # there are arrays of 1, 2 and 4 channels
        "failed = result_of(made, 'cuArrayCreate_v2', three)",
        "none = cu.cuArrayCreate_v2(byref(c_void_p()), None)",
        "say(failed, none, memory()[0])",
    )
    assert said == [1, 1, 100 * MIB]


def test_a_failed_destruction_keeps_the_charge(arrays: ProgramContainer) -> None:
    said = arrays.says(
        *ARRAYS,
        "own = start()",
        "kept = array(ROWS)",
        "call('cuCtxPopCurrent_v2', None)",
        "failed = result_of(destroy, kept)",
        "call('cuCtxSetCurrent', own)",
        "say(failed, memory()[0])",
    )
    assert said == [201, 99 * MIB]


def test_sizes_that_overflow_are_out_of_memory(arrays: ProgramContainer) -> None:
    said = arrays.says(
        *ARRAYS,
        "start()",
        "most = (1 << 64) - 1",
        "sizes = [(most, 0, 0), (1 << 40, 1 << 40, 0), (1 << 30, 1 << 30, 1 << 30)]",
        "names = ('cuArray3DCreate_v2', ()), ('cuMipmappedArrayCreate', (99,))",
        "say([result_of(made, name, New3D(*size, FLOAT, 4, 0), *more)",
        "     for size in sizes for name, more in names], memory()[0])",
    )
    assert said == [[2] * 6, 100 * MIB]


@pytest.mark.parametrize("flag", ["SPARSE", "DEFERRED"])
def test_an_array_without_memory_is_refused_with_one_line(
    flag: str, arrays: ProgramContainer
) -> None:
    arrays.env["GPUSHARE_LOG"] = "warning"
    lines = (
        *ARRAYS,
        "start()",
        f"say(result_of(array_3d, 64, 0, {flag}), result_of(mipmap, 64, 0, {flag}), memory()[0])",
    )
    done = arrays.run(sys.executable, "-c", program(*lines))
    assert done.stdout == f"[801, 801, {100 * MIB}]\n"
    assert done.stderr == (
        "gpushare: refused a sparse or deferred-mapping array: not supported on a shared card\n"
    )


def test_why_lists_arrays_separately(arrays: ProgramContainer) -> None:
    with arrays.start(
        sys.executable, "-c", program(*ARRAYS, "start()", "array(3 * ROWS)", "say()", "input()")
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert arrays.tenant.kind(abi.KIND_ARRAY) == 3 * MIB
        process.communicate("\n")
