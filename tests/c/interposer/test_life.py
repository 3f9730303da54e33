# SPDX-License-Identifier: Apache-2.0
"""Many processes of one container at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import LIGHT_CONTEXT_BYTES, SimulatedContainer
from .container import ProgramContainer
from .program import OUT_OF_MEMORY, DriverProgram, RefusedByDriver
from .tenant import MIB

QUOTA = 1024 * MIB  # no process is refused a context for what the pools of the others keep
MANY = 300


@pytest.fixture
def container(simulated_container: SimulatedContainer, light_profile: Path) -> ProgramContainer:
    made = simulated_container(1, [0], light_profile)
    made.tenant.set_memory(QUOTA)
    made.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES)
    return made


def test_three_hundred_processes_that_start_at_once_are_all_counted(
    container: ProgramContainer, allocation_program: str
) -> None:
    container.tenant.set_memory(MANY * 4 * MIB)
    started = [DriverProgram(container, allocation_program) for _ in range(MANY)]
    try:
        for one in started:
            one.take("buffer", 2 * MIB)
        assert container.tenant.used() == (MANY * 4 * MIB, MANY)
        assert len(set(container.tenant.processes())) == MANY
        with pytest.raises(RefusedByDriver) as refused:
            started[0].take("buffer", 1)
        assert refused.value.code == OUT_OF_MEMORY
        for other in started[1:]:
            other.kill()
        started[0].take("buffer", (MANY - 1) * 4 * MIB)
    finally:
        for one in started:
            one.kill()
