# SPDX-License-Identifier: Apache-2.0
"""Processes of one tenant that execute commands, one of them after another."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from .tenant import MIB

if TYPE_CHECKING:
    from .conftest import ProgramContainer

SIMULATED_CONTEXT = 104 * MIB  # simulator/profiles/t4.json

_LOOP = (
    Path(__file__).with_name("client.py").read_text(),
    "start()",
    "say(None)",
    "for line in sys.stdin:",
    "    name, text = json.loads(line)",
    "    try:",
    "        if name:",
    "            globals()[name] = eval(text)",
    "            say(globals()[name])",
    "        else:",
    "            say(eval(text))",
    "    except Refused as refused:",
    "        say({'refused': refused.args[1]})",
)


@dataclass
class Rank:
    """A process that has the functions of client.py, and a context."""

    process: Popen[str]
    container: ProgramContainer

    def ask(self, expression: str, name: str = "") -> Any:
        """Return what `expression` is there, and keep it there as `name`.

        An error of the driver's is {"refused": its number}.
        """
        assert self.process.stdin
        self.process.stdin.write(json.dumps([name, expression]) + "\n")
        self.process.stdin.flush()
        return self.heard()

    def heard(self) -> Any:
        """Return what it says next."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)[0]

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()


class Ranks:
    """The processes of a container with 100 MiB, and what the driver says of them."""

    def __init__(self, container: ProgramContainer, count: int) -> None:
        self.container = container
        code = "\n".join(_LOOP)
        self._all = [
            Rank(container.start(sys.executable, "-c", code), container) for _ in range(count)
        ]
        for rank in self._all:
            rank.heard()

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._all)

    def __getitem__(self, number: int) -> Rank:
        return self._all[number]

    def used(self, rank: Rank) -> int:
        """Return what counts against the quota, in MiB, as `rank` sees it."""
        return int(rank.ask("100 - memory()[0] // MIB"))

    def taken(self, rank: Rank) -> int:
        """Return what the driver has given beside contexts, in MiB."""
        driver = self.container.libraries.parent / "driver" / "libcuda.so.1"
        taken = rank.ask(f"taken_of_card({str(driver)!r})")
        contexts = sum(one.process.poll() is None for one in self) * SIMULATED_CONTEXT
        return (int(taken) - contexts) // MIB

    def both(self, rank: Rank) -> tuple[int, int]:
        """Return (used, taken)."""
        return self.used(rank), self.taken(rank)

    def reap(self, rank: Rank) -> None:
        """Let `rank` be refused something, which clears what the dead left."""
        assert rank.ask("result_of(alloc, 100 * MIB)") == 2

    def end(self) -> None:
        """End those that are left."""
        for rank in self._all:
            rank.kill()
            rank.process.communicate()


@contextmanager
def ranks(container: ProgramContainer, count: int) -> Iterator[Ranks]:
    """Start `count` processes of `container`."""
    made = Ranks(container, count)
    try:
        yield made
    finally:
        made.end()
