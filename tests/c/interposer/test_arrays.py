# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Arrays count against the quota at what block-linear memory takes."""

from __future__ import annotations

import sys

from .client import *
from .container import ProgramContainer, program
from .inside import inside

SHAPES: list[Callable[[], c_void_p]] = [
    lambda: array(512),
    lambda: array(512, 5, LAYERED),
    lambda: array(512, 10),
    lambda: array(1024, 6, CUBEMAP),
    lambda: mipmap(1024, levels=11),
    lambda: mipmap(1024, 6, CUBEMAP, 11),
    lambda: mipmap(512, 8, 0, 99),
    lambda: made("cuArray3DCreate_v2", byref(Array3D2(1000, 1000, 0, 0x10, 4, 0))),
    lambda: made("cuArrayCreate_v2", byref(Array2(3 << 15, 0, 0x01, 4))),
]


@inside()
def test_the_charge_is_the_drivers_use(simulated: ProgramContainer) -> None:
    simulated.tenant.set_memory(1000 * MIB)
    start()
    alloc(MIB)  # a block for small allocations is there from now on
    for number, shape in enumerate(SHAPES):
        before, held = charged(), taken()
        shape()
        grown, given = charged() - before, taken() - held
        assert grown > 0
        assert given in {-(-grown // (2 * MIB)) * 2 * MIB, 0 if grown <= MIB else None}, number


def test_an_array_without_memory_is_refused_with_one_line(simulated: ProgramContainer) -> None:
    simulated.env["GPUSHARE_LOG"] = "warning"
    each = "[result_of(f, 64, 0, flag) for f in (array, mipmap) for flag in (SPARSE, DEFERRED)]"
    done = simulated.run(sys.executable, "-c", program("start()", f"say({each}, charged())"))
    assert done.stdout == "[[801, 801, 801, 801], 0]\n"
    assert done.stderr == (
        "gpushare: refused a sparse or deferred-mapping array: not supported on a shared card\n"
    )
