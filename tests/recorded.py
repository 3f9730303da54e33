# SPDX-License-Identifier: Apache-2.0
"""Cases in a text file: what is given to a reader, and all that it says of it.

`## ` begins a case with its title, and `=> ` each line that was said. A change that is meant is
written by the module of the tests, as in `python -m tests.unit.manifest.test_check`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RecordedCase:
    """A text, and the lines that were said of it."""

    title: str
    text: str
    said: list[str]

    def __str__(self) -> str:
        return self.title


def cases(path: Path) -> list[RecordedCase]:
    """Read the cases of a file."""
    found = []
    for block in re.split(r"(?m)^## ", path.read_text(encoding="utf-8"))[1:]:
        title, *lines = block.splitlines()
        said = [line.removeprefix("=> ") for line in lines if line.startswith("=> ")]
        text = "".join(f"{line}\n" for line in lines if not line.startswith("=> "))
        found.append(RecordedCase(title, text, said))
    return found


def write(path: Path, known: Iterable[RecordedCase], say: Callable[[str], list[str]]) -> None:
    """Write what is said now of these texts."""
    blocks = (
        f"## {case.title}\n{case.text}" + "".join(f"=> {line}\n" for line in say(case.text))
        for case in known
    )
    path.write_text("".join(blocks), encoding="utf-8")
