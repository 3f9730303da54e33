# SPDX-License-Identifier: Apache-2.0
"""Control daemons of the simulated driver for the tests, and their clients' machines."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.system.waiting import wait_until

from .conftest import SECONDS, SimulatorMachine


@dataclass(frozen=True)
class MpsDaemon:
    """A running control daemon."""

    machine: SimulatorMachine
    folder: Path
    process: subprocess.Popen[bytes]

    def command(self, *lines: str) -> list[str]:
        """Return what commands print, line by line."""
        done = subprocess.run(
            [str(self.machine.simulator.mps_control)],
            input="".join(f"{line}\n" for line in lines),
            env=self.client().env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return done.stdout.splitlines()

    def log(self) -> str:
        """Return what it has printed."""
        return (self.folder / "output.log").read_text(encoding="utf-8")

    def client(self, **env: str) -> SimulatorMachine:
        """Return the machine as a client of this daemon sees it."""
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "pipe")}
        return replace(self.machine, variables=pipes | env)


@contextmanager
def mps_daemon(machine: SimulatorMachine) -> Iterator[MpsDaemon]:
    """Start a control daemon, whose sockets have short paths, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        folder = Path(name)
        (folder / "pipe").mkdir()
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe")}
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                [str(machine.simulator.mps_control), "-f"],
                env={**machine.env, **variables},
                stdout=output,
            )
        running = MpsDaemon(machine, folder, process)
        try:
            wait_until(lambda: "Starting control daemon" in running.log())
            yield running
        finally:
            process.terminate()
            process.wait(SECONDS)
