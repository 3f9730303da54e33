# SPDX-License-Identifier: Apache-2.0
"""Many processes of one container at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .client import MIB, OUT_OF_MEMORY, alloc, start
from .conftest import LIGHT_CONTEXT_BYTES, SimulatedContainer
from .inside import ForkedProcess
from .rank import Rank

MANY = 300


def test_three_hundred_processes_that_start_at_once_are_all_counted(
    simulated_container: SimulatedContainer, light_profile: Path
) -> None:
    container = simulated_container(1, [0], light_profile)
    container.tenant.set_memory(MANY * 4 * MIB)
    container.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES)
    ready, says = os.pipe()

    def holds() -> None:
        start()
        alloc(2 * MIB)
        os.write(says, b"1")
        signal.pause()

    rank = Rank(container)
    rank.ask("alloc(2 * MIB)")
    started = [ForkedProcess(container, holds, says) for _ in range(1, MANY)]
    try:
        os.close(says)
        with os.fdopen(ready, "rb") as lines:
            assert lines.read(len(started)) == b"1" * len(started)
        assert container.tenant.used() == (MANY * 4 * MIB, MANY)
        assert len(set(container.tenant.processes())) == MANY
        assert rank.ask("result_of(alloc, 1)") == OUT_OF_MEMORY
        for one in started:
            one.kill()
        assert rank.ask(f"result_of(alloc, {(MANY - 1) * 4 * MIB})") == 0
    finally:
        for one in started:
            one.close()
        rank.end()
