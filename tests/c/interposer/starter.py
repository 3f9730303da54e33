# SPDX-License-Identifier: Apache-2.0
"""A running starts_program.c: its commands, and its answers."""

from __future__ import annotations

from .container import ProgramContainer


class Starter:
    """One process that has the driver, and starts work on command."""

    def __init__(self, container: ProgramContainer, path: str, lookup: str = "dlopen") -> None:
        self._process = container.start(path, lookup)
        #: symbol -> "here", or "none" of one that the simulator does not have.
        self.kinds: dict[str, str] = {}
        while (line := self._line()) != "ready":
            symbol, kind = line.split()
            self.kinds[symbol] = kind

    def start(self, symbol: str, times: int = 1) -> None:
        """Have it call `symbol` in a thread of its own."""
        self._say(f"start {symbol} {times}")

    def join(self) -> int:
        """Return what the driver answered to that, when it has."""
        return self._ask("join")

    def call(self, symbol: str, times: int = 1) -> int:
        """As start and join."""
        self.start(symbol, times)
        return self.join()

    def given_ns(self) -> int:
        """Return the card time that the driver behind the filter was ever given."""
        return self._ask("given")

    def set_duration(self, ns: int) -> None:
        """Of kernels, and of each of the two of a graph that is made now."""
        assert self._ask(f"duration {ns}") == 0

    def synchronize(self) -> None:
        """Wait for the card."""
        assert self._ask("sync") == 0

    def _ask(self, line: str) -> int:
        self._say(line)
        word, number = self._line().split()
        assert word == "ok"
        return int(number)

    def _say(self, line: str) -> None:
        self._process.tell(line)

    def _line(self) -> str:
        line = self._process.line()
        assert line, f"the program ended: {self._process.communicate()[1]}"
        return line

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
