# SPDX-License-Identifier: Apache-2.0
"""Processes of one tenant that do as they are told, one of them after another."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

from .conftest import Container, program

_LOOP = (
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

    def __init__(self, container: Container, count: int, *before: str) -> None:
        self.container = container
        code = program(*before, *_LOOP)
        self._all = [Rank(container.start(sys.executable, "-c", code)) for _ in range(count)]
        for rank in self._all:
            rank.heard()

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._all)

    def __getitem__(self, number: int) -> Rank:
        return self._all[number]

    def end(self) -> None:
        """End those that are left."""
        for rank in self._all:
            rank.kill()
            rank.process.communicate()


@contextmanager
def ranks(container: Container, count: int, *before: str) -> Iterator[Ranks]:
    """Start `count` processes; each does the lines `before` first."""
    made = Ranks(container, count, *before)
    try:
        yield made
    finally:
        made.end()
