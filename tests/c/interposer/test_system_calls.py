# SPDX-License-Identifier: Apache-2.0
"""What the library costs the start of a program, in system calls: the same on every machine."""

from __future__ import annotations

from pathlib import Path

from .conftest import compile_c
from .container import ProgramContainer

#: What the library adds to the driver's own calls, by the step of system_calls.c: its pages and two
#: descriptors at cuInit, and a part of the table of allocations at each of these.
ADDED = {
    "dlopen": 12,
    "cuInit": 23,
    "context": 0,
    "allocation": 1,
    "another": 1,
    "load": 4,
    "launch": 0,
    "again": 0,
    "steady": 0,
    "threads": 0,
}


def test_a_start_makes_these_system_calls_and_no_thread(
    simulated: ProgramContainer, tmp_path: Path
) -> None:
    program = compile_c(tmp_path / "system_calls", "system_calls.c")

    def made(container: ProgramContainer) -> dict[str, int]:
        done = container.run(program, container.libraries / "libcuda.so.1")
        assert done.returncode == 0, done.stderr
        return {step: int(count) for step, count in map(str.split, done.stdout.splitlines())}

    with simulated.tenant.listen():
        own = made(simulated)
    driver = made(simulated.bare())
    assert {step: own[step] - driver[step] for step in ADDED} == ADDED
