# SPDX-License-Identifier: Apache-2.0
"""Every way to the driver leads past the quota through no way of allocating."""

from __future__ import annotations

import pytest

from .conftest import Container, SimulatedContainer
from .program import DOORS, OUT_OF_MEMORY, Program, Refused
from .tenant import MIB
from .test_reach import WAYS

QUOTA = 513 * MIB
#: What fits whatever a door rounds by: pools and graphs grow in chunks of 32 MiB.
STEP = 64 * MIB


@pytest.fixture
def container(simulated_container: SimulatedContainer) -> Container:
    made = simulated_container(1, [0])
    made.tenant.set_memory(QUOTA)
    made.env["LIBCUDA"] = str(made.libraries / "libcuda.so.1")
    return made


@pytest.mark.parametrize("way", [*WAYS, "linked"])
def test_no_door_gives_more_than_the_quota(
    way: str, container: Container, doors_program: str, linked_doors_program: str
) -> None:
    path = linked_doors_program if way == "linked" else doors_program
    with Program(container, path, way) as program:
        free = program.free()
        for door in DOORS:
            with pytest.raises(Refused) as refused:
                program.take(door, free + 2 * MIB)
            assert refused.value.code == OUT_OF_MEMORY, door
            assert program.free() == free, door
            number = program.take(door, STEP)
            assert program.free() <= free - STEP, door
            program.give(number)
            program.trim()
            assert program.free() == free, door


@pytest.mark.parametrize("door", DOORS)
def test_a_door_gives_the_last_byte_and_not_the_next(
    door: str, container: Container, doors_program: str
) -> None:
    with Program(container, doors_program) as program:
        free = program.free()
        whole = free // STEP * STEP
        program.take("buffer", free - whole)
        number = program.take(door, whole)
        assert program.free() < 2 * MIB  # what a module is beside its variables, at the most
        for other in ("buffer", "physical", "async"):
            with pytest.raises(Refused) as refused:
                program.take(other, 2 * MIB)
            assert refused.value.code == OUT_OF_MEMORY
        program.give(number)
        program.trim()
        assert program.free() == whole


def test_a_refused_allocation_succeeds_once_there_is_room(
    container: Container, doors_program: str
) -> None:
    """As frameworks do: refused, they free what they cache and try again."""
    with Program(container, doors_program) as program:
        whole = program.free() // STEP * STEP
        for door in DOORS:
            cached = [program.take("async", STEP) for _ in range(whole // STEP)]
            with pytest.raises(Refused):
                program.take(door, STEP)
            for number in cached:
                program.give(number)
            program.trim()
            program.give(program.take(door, STEP))
            program.trim()
