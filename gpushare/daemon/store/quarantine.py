# SPDX-License-Identifier: Apache-2.0
"""Damaged files, moved aside: nothing of them is lost, and nothing of them is believed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MOST: Final = 4  # of one file; the oldest goes


def set_aside(file: Path, *beside: str) -> Path:
    """Rename `file` to `FILE.damaged-N`, with what belongs to it (`beside`: "-wal"); return that.

    The highest N is the newest. Renaming takes no room on a full disk. A file that is not there is
    fine. OSError.
    """
    numbers = sorted(_numbers(file))
    aside = file.with_name(f"{file.name}.damaged-{(numbers or [0])[-1] + 1}")
    for ending in ("", *beside):
        found = file.with_name(file.name + ending)
        if found.exists():
            found.rename(aside.with_name(aside.name + ending))
    for number in numbers[: max(0, len(numbers) + 1 - _MOST)]:
        for ending in ("", *beside):
            file.with_name(f"{file.name}.damaged-{number}{ending}").unlink(missing_ok=True)
    return aside


def _numbers(file: Path) -> set[int]:
    pattern = re.compile(re.escape(file.name) + r"\.damaged-([1-9]\d{0,8})(?:-\w+)?")
    matches = (pattern.fullmatch(other.name) for other in file.parent.iterdir())
    return {int(match[1]) for match in matches if match}
