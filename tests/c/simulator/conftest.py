# SPDX-License-Identifier: Apache-2.0
"""Simulated machines for the tests, and programs that run on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
SECONDS = 120  # after which a program hangs


@dataclass(frozen=True)
class SimulatorMachine:
    """A machine with simulated cards."""

    simulator: simulator.Simulator
    libraries: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment in which a program finds the simulated libraries and the cards."""
        return {
            **os.environ,
            **self.simulator.env,
            "LD_LIBRARY_PATH": str(self.libraries),
            "PYTHONPATH": str(CLIENTS),
            **self.variables,
        }

    @contextmanager
    def started(
        self, client: str, *arguments: str, under: Sequence[str] = ()
    ) -> Iterator[ClientProcess]:
        """Start a client that reads lines and answers each with one of JSON; killed at the end.

        `under` is a command that runs it.
        """
        process = subprocess.Popen(
            [*under, sys.executable, str(CLIENTS / client), *arguments],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield ClientProcess(process)
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class ClientProcess:
    """A running client."""

    process: subprocess.Popen[str]

    def ask(self, line: str) -> Any:
        """Send one request and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the client ended before it answered"
        return json.loads(answer)

    def kill(self) -> None:
        """Kill it -9 and wait until it is gone."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., SimulatorMachine]:
    """Return a maker of machines: `simulate("h200", cards=2)`."""
    libraries = device_file.libraries()

    def make(profile: str = "h200", **options: Any) -> SimulatorMachine:
        folder = tmp_path / f"machine{len(list(tmp_path.iterdir()))}"
        return SimulatorMachine(simulator.create(folder, profile, **options), libraries)

    return make


@pytest.fixture
def machine(simulate: Callable[..., SimulatorMachine]) -> SimulatorMachine:
    """Return a machine with one H200."""
    return simulate()
