# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own MPS control daemon, started and commanded as gpushared does it, without a card."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.daemon.mps.control import ControlProgram, MpsControl
from tests.real_driver import RealDriver, isolated
from tests.system.waiting import wait_until

_TRANSCRIPT = Path(__file__).with_name("mps_transcript.txt")


def transcript(release: str) -> Iterator[tuple[str, str]]:
    """Yield each command of the transcript with the first line that a release prints."""
    for line in _TRANSCRIPT.read_text(encoding="ascii").splitlines():
        command, _, printed = line.partition(" =>")
        of, _, rest = command.partition(": ")
        if rest and of != release:
            continue
        if not line.startswith("#"):
            yield rest or command, printed.strip()


def control_program(driver: RealDriver, folder: Path) -> ControlProgram:
    """Return the program with folders of its own; a script gives each process a /dev of its own."""
    path = folder / "nvidia-cuda-mps-control"
    command = isolated(driver.program("nvidia-cuda-mps-control"))
    programs = f"{driver.libraries.parent}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    path.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={driver.libraries} PATH={programs}\n"
        f'exec {shlex.join(command)} "$@"\n'
    )
    path.chmod(0o755)
    pipes, logs = folder / "p", folder / "log"
    for part in (pipes, logs):
        part.mkdir()
    return ControlProgram(path, pipes, logs, "GPU-1234")


@contextmanager
def running(program: ControlProgram) -> Iterator[MpsControl]:
    """Start it in the foreground; its lines are in `output.log`."""
    with (program.log_folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            program.arguments(), env=program.environment(), stdout=output, stderr=output
        )
    control = MpsControl(program)
    try:
        wait_until(control.is_ready)
        yield control
    finally:
        process.kill()
        process.wait()
