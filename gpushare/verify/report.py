# SPDX-License-Identifier: Apache-2.0
"""What a person reads while a scenario runs: each command exactly as run, then whether it held."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

BOLD, DIM, GREEN, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[1;31m", "\033[0m"


@dataclass(frozen=True)
class Check:
    """One claim, whether it held, and (where it did not) what was seen instead.

    `figures` are what it was judged by, where that is numbers.
    """

    claim: str
    held: bool
    seen: str = ""
    figures: Mapping[str, float | None] | None = None


@dataclass
class Report:
    """Collects checks and prints them as they come; `stream` None keeps quiet (--json)."""

    stream: TextIO | None = None
    colour: bool = False
    checks: list[Check] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether there was something to hold, and all of it did."""
        return bool(self.checks) and all(check.held for check in self.checks)

    @property
    def summary(self) -> str:
        """Say how many claims held."""
        held = sum(check.held for check in self.checks)
        return f"{held} of {len(self.checks)} claims held"

    def title(self, text: str) -> None:
        """Begin a step."""
        self._line(f"\n{BOLD}{text}{PLAIN}")

    def say(self, text: str) -> None:
        """Print a line that claims nothing."""
        self._line(f"  {text}")

    def command(self, argv: Sequence[str]) -> None:
        """Show a command in the form in which a reader could type it."""
        self._line(f"{DIM}${PLAIN} {shlex.join(argv)}")

    def output(self, text: str) -> None:
        """Print what a command printed."""
        for line in text.rstrip("\n").splitlines():
            self._line(f"  {DIM}{line}{PLAIN}")

    def check(
        self,
        claim: str,
        held: bool,
        seen: object = "",
        figures: Mapping[str, float | None] | None = None,
    ) -> bool:
        """Note whether `claim` held, and what was seen where it did not; return `held`."""
        self.checks.append(Check(claim, held, "" if held else str(seen), figures))
        if held:
            self._line(f"  {GREEN}held{PLAIN}    {claim}")
        else:
            self._line(f"  {RED}FAILED{PLAIN}  {claim}: {seen}")
        return held

    def _line(self, text: str) -> None:
        if self.stream is None:
            return
        if not self.colour:
            for code in (BOLD, DIM, GREEN, RED, PLAIN):
                text = text.replace(code, "")
        print(text, file=self.stream, flush=True)
