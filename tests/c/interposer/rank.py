# SPDX-License-Identifier: Apache-2.0
"""Processes of one tenant that execute commands, one of them after another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TextIO

from . import client
from .client import MIB, start
from .container import ProgramContainer
from .inside import ForkedProcess

SIMULATED_CONTEXT = 104 * MIB  # simulator/profiles/t4.json


def _serve(namespace: dict[str, Any], lines: TextIO, answers: TextIO) -> None:
    for line in lines:
        name, text = json.loads(line)
        said: Any
        try:
            said = eval(text, namespace)
            if name:
                namespace[name] = said
        except client.Refused as refused:
            said = {"refused": refused.args[1]}
        # What is kept may be anything.
        answers.write(json.dumps([said], default=lambda _: None) + "\n")
        answers.flush()


class Rank:
    """A process that has the words of client.py, and more, and has done `first`: made a context."""

    def __init__(
        self,
        container: ProgramContainer,
        first: Callable[[], object] = start,
        words: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.container = container
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()

        def body() -> None:
            first()
            with os.fdopen(their_in) as lines, os.fdopen(their_out, "w") as answers:
                answers.write("null\n")
                answers.flush()
                _serve({**vars(client), **words}, lines, answers)

        self.process = ForkedProcess(container, body, their_in, their_out)
        os.close(their_in)
        os.close(their_out)
        self._lines, self._answers = os.fdopen(our_out, "w"), os.fdopen(our_in)
        self._line()

    def ask(self, expression: str, name: str = "") -> Any:
        """Return what `expression` is there, and keep it there as `name`.

        An error of the driver's is {"refused": its number}.
        """
        self.tell(expression, name)
        return self.heard()

    def tell(self, expression: str, name: str = "") -> None:
        """As ask; heard() returns the answer."""
        self._lines.write(json.dumps([name, expression]) + "\n")
        self._lines.flush()

    def heard(self) -> Any:
        """Return what it says next."""
        return json.loads(self._line())[0]

    def _line(self) -> str:
        line = self._answers.readline()
        assert line, (self.process.wait(), self.process.said())
        return line

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()

    def end(self) -> None:
        """Let it end, and let go of it."""
        self._lines.close()
        self.process.end()
        self._answers.close()


class Ranks:
    """The processes of a container with 100 MiB, and what the driver says of them."""

    def __init__(self, container: ProgramContainer, count: int) -> None:
        self.container = container
        self._all = [Rank(container) for _ in range(count)]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._all)

    def __getitem__(self, number: int) -> Rank:
        return self._all[number]

    def used(self, rank: Rank) -> int:
        """Return what counts against the quota, in MiB, as `rank` sees it."""
        return int(rank.ask("100 - memory()[0] // MIB"))

    def taken(self, rank: Rank) -> int:
        """Return the bytes that the driver has given beside contexts."""
        contexts = sum(one.process.poll() is None for one in self) * SIMULATED_CONTEXT
        return int(rank.ask("taken()")) - contexts

    def both(self, rank: Rank) -> tuple[int, int]:
        """Return (used, taken), in MiB."""
        return self.used(rank), self.taken(rank) // MIB

    def reap(self, rank: Rank) -> None:
        """Let `rank` be refused something, which clears what the dead left."""
        assert rank.ask("result_of(alloc, 100 * MIB)") == 2

    def end(self) -> None:
        """End those that are left."""
        for rank in self._all:
            rank.end()


@contextmanager
def ranks(container: ProgramContainer, count: int) -> Iterator[Ranks]:
    """Start `count` processes of `container`."""
    made = Ranks(container, count)
    try:
        yield made
    finally:
        made.end()
