# SPDX-License-Identifier: Apache-2.0
"""No allocation path exceeds the quota, however the program looks up the driver."""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer, SimulatedContainer
from .program import ALLOCATION_PATHS, OUT_OF_MEMORY, DriverProgram, RefusedByDriver
from .tenant import MIB
from .test_reach import LOOKUPS

QUOTA = 513 * MIB
#: What fits whatever a allocation rounds by: pools and graphs grow in chunks of 32 MiB.
STEP = 64 * MIB


@pytest.fixture
def container(simulated_container: SimulatedContainer) -> ProgramContainer:
    made = simulated_container(1, [0])
    made.tenant.set_memory(QUOTA)
    made.env["LIBCUDA"] = str(made.libraries / "libcuda.so.1")
    return made


@pytest.mark.parametrize("lookup", [*LOOKUPS, "linked"])
def test_no_path_gives_more_than_the_quota(
    lookup: str,
    container: ProgramContainer,
    allocation_program: str,
    linked_allocation_program: str,
) -> None:
    path = linked_allocation_program if lookup == "linked" else allocation_program
    with DriverProgram(container, path, lookup) as program:
        free = program.free()
        for allocation in ALLOCATION_PATHS:
            with pytest.raises(RefusedByDriver) as refused:
                program.take(allocation, free + 2 * MIB)
            assert refused.value.code == OUT_OF_MEMORY, allocation
            assert program.free() == free, allocation
            number = program.take(allocation, STEP)
            assert program.free() <= free - STEP, allocation
            program.give(number)
            program.trim()
            assert program.free() == free, allocation


@pytest.mark.parametrize("allocation", ALLOCATION_PATHS)
def test_a_path_gives_the_last_byte_and_not_the_next(
    allocation: str, container: ProgramContainer, allocation_program: str
) -> None:
    with DriverProgram(container, allocation_program) as program:
        free = program.free()
        whole = free // STEP * STEP
        program.take("buffer", free - whole)
        number = program.take(allocation, whole)
        assert program.free() < 2 * MIB  # what a module is beside its variables, at the most
        for other in ("buffer", "physical", "async"):
            with pytest.raises(RefusedByDriver) as refused:
                program.take(other, 2 * MIB)
            assert refused.value.code == OUT_OF_MEMORY
        program.give(number)
        program.trim()
        assert program.free() == whole


def test_a_refused_allocation_succeeds_once_there_is_room(
    container: ProgramContainer, allocation_program: str
) -> None:
    """As frameworks do: refused, they free what they cache and try again."""
    with DriverProgram(container, allocation_program) as program:
        whole = program.free() // STEP * STEP
        for allocation in ALLOCATION_PATHS:
            cached = [program.take("async", STEP) for _ in range(whole // STEP)]
            with pytest.raises(RefusedByDriver):
                program.take(allocation, STEP)
            for number in cached:
                program.give(number)
            program.trim()
            program.give(program.take(allocation, STEP))
            program.trim()
