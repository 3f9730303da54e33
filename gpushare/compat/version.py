# SPDX-License-Identifier: Apache-2.0
"""Versions of CUDA, of drivers and of cards, as numbers that compare."""

from __future__ import annotations

import functools
import re
from typing import Final, TypeAlias

#: (12, 4, 127), (550, 54, 15), (7, 5). Zeros at the end say nothing and are not kept, but of a
#: runtime: (12,) is one of which nothing finer is known, and (12, 0, 107) of 12.0.
Version: TypeAlias = "tuple[int, ...]"

_TEXT: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,5}", re.ASCII)


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Version | None:
    """Return the version that `text` is, None where it is none: `12.4.1`, `550.54.15`."""
    found = as_written(text)
    return None if found is None else exact(found)


def as_written(text: str) -> Version | None:
    """Return the same with the zeros at its end: of a runtime they say how much is known."""
    stripped = text.strip()
    if not _TEXT.fullmatch(stripped):
        return None
    return tuple(int(part) for part in stripped.split("."))


def exact(version: Version) -> Version:
    """Return `version` without zeros at its end, but for the first number: 12.0 is 12."""
    end = len(version)
    while end > 1 and version[end - 1] == 0:
        end -= 1
    return version[:end]


def minor(version: Version) -> Version:
    """Return major and minor alone, as a driver tells of itself: 12.4.127 is (12, 4)."""
    return exact(version[:2])


def shown(version: Version) -> str:
    """Return a version of CUDA or of a card as it is written: 12.0, 12.4."""
    return ".".join(map(str, (*version, 0)[:2]))


def whole(version: Version) -> str:
    """Return all of a driver's version as NVIDIA writes it: 525.60.13, 580.65.06."""
    return ".".join(str(part) if place == 0 else f"{part:02}" for place, part in enumerate(version))
