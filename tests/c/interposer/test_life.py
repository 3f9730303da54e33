# SPDX-License-Identifier: Apache-2.0
"""Many processes of one container: all at once, and killed at any instruction."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from .conftest import LIGHT_CONTEXT_BYTES, SimulatedContainer, compile_c
from .container import ProgramContainer
from .program import OUT_OF_MEMORY, DriverProgram, RefusedByDriver
from .rank import Rank
from .tenant import MIB

QUOTA = 1024 * MIB  # no process is refused a context for what the pools of the others keep
KILLS = 400
AT_ONCE = 4
MANY = 300


@pytest.fixture
def container(simulated_container: SimulatedContainer, light_profile: Path) -> ProgramContainer:
    made = simulated_container(1, [0], light_profile)
    made.tenant.set_memory(QUOTA)
    made.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES)
    return made


def _killed(container: ProgramContainer, path: str, draw: random.Random) -> None:
    """Start some that take and give at random, and kill each at a moment drawn at random."""
    started = [
        container.start(path, "dlopen", "0", str(draw.randrange(1 << 31))) for _ in range(AT_ONCE)
    ]
    for process in started:
        # Most are killed amid their work; some while they get the driver and enter themselves.
        if draw.random() < 0.8:
            process.line()
        time.sleep(draw.random() * 0.003)  # at a moment that nothing tells
        process.kill()
    for process in started:
        _, said = process.communicate()
        assert process.returncode == -9, said


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_process_leaves_no_charge_and_no_lock(
    seed: int, container: ProgramContainer, allocation_program: str
) -> None:
    draw = random.Random(seed)
    with DriverProgram(container, allocation_program) as survivor:
        everything = survivor.free()
        truth = _bare_free(container)
        for _ in range(KILLS // 2 // AT_ONCE):
            _killed(container, allocation_program, draw)
            survivor.give(survivor.take("buffer", everything))  # no room is missing, no lock held
            assert survivor.free() == everything
        assert container.tenant.processes() == [survivor.process.pid]
        assert container.tenant.used() == (LIGHT_CONTEXT_BYTES, 1)
        assert _bare_free(container) == truth


def _bare_free(container: ProgramContainer) -> int:
    """Return what the card itself has free, asked past the filter."""
    bare = Rank(container.bare())
    try:
        return int(bare.ask("memory()[0]"))
    finally:
        bare.end()


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


def test_nothing_asks_the_kernel_once_the_driver_is_there(fake: ProgramContainer) -> None:
    """Whatever it asks, seccomp's strict mode kills it."""
    path = compile_c(fake.tenant.directory / "silent", "silent.c")
    done = fake.run(path)
    assert (done.returncode, done.stdout) == (0, "strict\n100000 calls\n")
