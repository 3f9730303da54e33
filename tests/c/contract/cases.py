# SPDX-License-Identifier: Apache-2.0
"""The table of cases, cases.inc, and what the program is made from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
LINE = re.compile(r'CASE\((\w+), (\d), (\d), (\d+),\s*"([^"]+)",\s*"([^"]+)"\)')


class Case(NamedTuple):
    """One statement about a driver; `seen` is where it was seen to hold on a real card."""

    name: str
    runs: int
    cards: int
    cuda_version: int
    source: str
    seen: str


def cases() -> list[Case]:
    """Return every case, in the order of the table."""
    found = LINE.findall((FOLDER / "cases.inc").read_text(encoding="utf-8"))
    return [Case(name, *map(int, numbers), source, seen) for name, *numbers, source, seen in found]


def sources() -> tuple[str, ...]:
    """Return the files of the program."""
    return tuple(sorted(path.name for path in FOLDER.glob("*.c")))
