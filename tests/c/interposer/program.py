# SPDX-License-Identifier: Apache-2.0
"""A running allocation_program.c: its commands, and its answers."""

from __future__ import annotations

import subprocess
from typing import Final

from .container import ProgramContainer

OUT_OF_MEMORY: Final = 2
NOT_PERMITTED: Final = 800

#: Every lookup of allocation_paths.c to take memory, in the order in which frameworks come to them.
ALLOCATION_PATHS: Final = (
    "buffer",
    "pitch",
    "managed",
    "async",
    "async_ptsz",
    "pool",
    "pool_ptsz",
    "physical",
    "mapped",
    "array",
    "mipmapped",
    "graph",
    "module",
    "limit",
    "external",
)


class RefusedByDriver(Exception):
    """The driver's answer was not CUDA_SUCCESS; `code` is what it was."""

    def __init__(self, asked: str, code: int) -> None:
        super().__init__(f"{asked}: CUDA error {code}")
        self.code = code


class DriverProgram:
    """One process that has the driver, and a context on one of the container's cards."""

    def __init__(self, container: ProgramContainer, path: str, device: int = 0) -> None:
        self.process = container.start(path, str(device))

    def ask(self, line: str) -> list[int]:
        """Return the numbers behind "ok"; RefusedByDriver where it refused."""
        self.process.tell(line)
        answer = self.process.line().split()
        if not answer:
            said = self.process.stderr.read() if self.process.stderr else ""
            raise AssertionError(f"{line}: the program ended: {said}")
        word, *numbers = answer
        if word == "error":
            raise RefusedByDriver(line, int(numbers[0]))
        return [int(number) for number in numbers]

    def take(self, allocation: str, size: int) -> int:
        """Take `size` bytes through `allocation`; the number to give them back by."""
        return self.ask(f"take {allocation} {size}")[0]

    def give(self, number: int) -> None:
        """Give back what was taken."""
        self.ask(f"give {number}")

    def trim(self) -> None:
        """Wait for the card, and let pools and graphs keep nothing."""
        self.ask("trim")

    def free(self) -> int:
        """What cuMemGetInfo says is free."""
        return self.ask("info")[0]

    def total(self) -> int:
        """What cuMemGetInfo says is there."""
        return self.ask("info")[1]

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> DriverProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a program printed that ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout
