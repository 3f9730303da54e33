# SPDX-License-Identifier: Apache-2.0
"""kill -9 at a step that is chosen by its number (cut.c): the steps are system calls."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Where a program is not to be ended at all, and its steps are only counted.
NOWHERE = 0


class Cut:
    """Stands in for `program` at `at`, from where callers start it."""

    def __init__(self, tool: Path, at: Path, program: Path) -> None:
        self._program = program
        self._order = at.with_name(f"{at.name}.cut")
        self._said = at.with_name(f"{at.name}.said")
        shutil.copy(tool, at)
        self.at_step(NOWHERE)

    def at_step(self, number: int) -> None:
        """Have the next start end as it enters its `number`th system call."""
        self._said.unlink(missing_ok=True)
        self._order.write_text(f"{number} {self._program}\n")

    @property
    def was_cut(self) -> bool:
        """Whether it came so far."""
        return self._said.exists() and self._said.read_text() == "cut\n"

    @property
    def steps(self) -> int:
        """How many steps it took, where it was left alone."""
        word, count = self._said.read_text().split()
        assert word == "whole"
        return int(count)


class CutProcess:
    """A running process that may be cut; `steps` once the watching is over and it lives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.was_cut = False
        self.steps = 0

    def finish(self) -> None:
        self._process.terminate()
        said, _ = self._process.communicate()
        words = said.split()
        self.was_cut = words == ["cut"]
        self.steps = 0 if self.was_cut else int(words[1])


@contextmanager
def watched(tool: Path, pid: int, number: int, *options: str) -> Iterator[CutProcess]:
    """End process `pid` at the `number`th write that it makes within the block.

    `options` are those of cut.c.
    """
    with subprocess.Popen(
        [tool, *options, "--pid", str(pid), str(number)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        made = CutProcess(process)
        try:
            yield made
        finally:
            made.finish()


def sample(steps: int, count: int) -> list[int]:
    """Return about `count` of the steps from 1 to `steps`, evenly."""
    apart = max(1, count - 1)
    return sorted({1 + (steps - 1) * number // apart for number in range(count)})
