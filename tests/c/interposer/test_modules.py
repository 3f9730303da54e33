# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""What an image declares counts against the quota when it is loaded, however it is loaded."""

from __future__ import annotations

from gpushare import abi

from .client import *
from .conftest import SimulatedContainer
from .container import ProgramContainer
from .inside import inside, run_inside


@inside()
def test_managed_variables_are_of_the_kind_that_the_driver_does_not_count(
    simulated: ProgramContainer,
) -> None:
    start()
    module(image(30 * MIB, 20 * MIB))
    other = module(image(0, 10 * MIB))
    assert result_of(module, image(30 * MIB, 10 * MIB + 1)) == OUT_OF_MEMORY
    assert charged() == 60 * MIB
    unload(other)
    assert simulated.tenant.kind(abi.KIND_MODULE) == 30 * MIB
    assert simulated.tenant.kind(abi.KIND_MANAGED) == 20 * MIB
    context()
    module(image(MIB, MIB))
    call("cuCtxDestroy_v2", current())
    assert simulated.tenant.used()[0] == 50 * MIB


def test_a_library_is_charged_once_on_each_card_where_it_is_used(
    simulated_container: SimulatedContainer,
) -> None:
    def body() -> None:
        call("cuInit", 0)
        nowhere = library(image(60 * MIB))
        first = context(0)
        both, before = library(image(30 * MIB)), taken()
        assert charged() == 30 * MIB
        for _ in range(2):
            variable_of(nowhere)
        assert (charged(), taken() - before) == (90 * MIB, 60 * MIB)
        unload_library(nowhere)
        context(1)
        assert charged() == 0
        for _ in range(2):
            made("cuLibraryGetModule", both)
        assert charged() == 30 * MIB
        assert result_of(library, image(71 * MIB)) == OUT_OF_MEMORY
        unload_library(both)
        assert charged() == 0
        call("cuCtxSetCurrent", first)
        assert charged() == 0

    run_inside(simulated_container(2, [0, 1]), body)
