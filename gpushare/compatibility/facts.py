# SPDX-License-Identifier: Apache-2.0
"""The facts that are evaluated, the findings that result, and versions as numbers that compare."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpushare.compatibility.matrix import BASELINE

#: (12, 4, 127), (550, 54, 15), (7, 5). Zeros at the end say nothing and are not kept, but of a
#: runtime: (12,) is one of which nothing finer is known, and (12, 0, 107) of 12.0.
Version: TypeAlias = "tuple[int, ...]"

_TEXT: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,5}", re.ASCII)


CompatibilityLevel: TypeAlias = Literal["ok", "warn", "refuse"]
Backend: TypeAlias = Literal["interposer", "exclusive", "mps", "mig"]
LEVELS: Final[tuple[CompatibilityLevel, ...]] = ("ok", "warn", "refuse")
BACKENDS: Final[tuple[Backend, ...]] = ("interposer", "exclusive", "mps", "mig")


@functools.lru_cache(maxsize=256)
def parse_version(text: str) -> Version | None:
    """Return the version that `text` is, None where it is none: `12.4.1`, `550.54.15`."""
    found = parse_exactly(text)
    return None if found is None else strip_zeros(found)


def parse_exactly(text: str) -> Version | None:
    """Return the same with the zeros at its end: of a runtime they say how much is known."""
    stripped = text.strip()
    if not _TEXT.fullmatch(stripped):
        return None
    return tuple(int(part) for part in stripped.split("."))


def strip_zeros(version: Version) -> Version:
    """Return `version` without zeros at its end, but for the first number: 12.0 is 12."""
    end = len(version)
    while end > 1 and version[end - 1] == 0:
        end -= 1
    return version[:end]


def major_minor(version: Version) -> Version:
    """Return major and minor alone, as a driver tells of itself: 12.4.127 is (12, 4)."""
    return strip_zeros(version[:2])


def cuda_text(version: Version) -> str:
    """Return a version of CUDA or of a card as it is written: 12.0, 12.4."""
    return ".".join(map(str, (*version, 0)[:2]))


def driver_text(version: Version) -> str:
    """Return all of a driver's version as NVIDIA writes it: 525.60.13, 580.65.06."""
    return ".".join(str(part) if place == 0 else f"{part:02}" for place, part in enumerate(version))


@dataclass(frozen=True)
class CardFacts:
    """A card that the container gets. What is not known is None, or empty.

    `brand` is as NVIDIA_REQUIRE_ variables name it: tesla, geforce, nvidia. `mig`: it is
    partitioned. `datacenter`: cuda-compat packages are made for it.
    """

    name: str = ""
    capability: Version | None = None
    brand: str = ""
    mig: bool = False
    datacenter: bool | None = None


@dataclass(frozen=True)
class Machine:
    """What an image is to run on. `driver` and `cuda` are the host's driver, empty: not known."""

    driver: Version = ()
    cuda: Version = ()
    cards: tuple[CardFacts, ...] = ()
    backend: Backend = "interposer"
    baseline: Version = BASELINE


@dataclass(frozen=True)
class Runtime:
    """A CUDA runtime of an image, and where it was found: a path, or a variable."""

    version: Version
    where: str


@dataclass(frozen=True)
class Image:
    """What an image says of itself, and what is in it.

    `runtimes` in the order in which a program finds them. `requires` are its NVIDIA_REQUIRE_
    variables with what they say; `disabled`: none is to be looked at. `compat` is the version of
    the libcuda that it brings. `precisions` are formats that it is told to compute with, and what
    says so.
    """

    runtimes: tuple[Runtime, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    disabled: bool = False
    compat: Version = ()
    precisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CompatibilityFinding:
    """What one rule says: `what` in a sentence, the figures it rests on, and what to do."""

    level: CompatibilityLevel
    rule: str
    what: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.what} ({self.rule})"
        return f"{text}; {self.fix}" if self.fix else text


def refuse(rule: str, what: str, fix: str = "", **numbers: str) -> CompatibilityFinding:
    """Return a finding that refuses the image; `_` in the name of a number is a space."""
    return _finding("refuse", rule, what, fix, numbers)


def warn(rule: str, what: str, fix: str = "", **numbers: str) -> CompatibilityFinding:
    """Return a warning."""
    return _finding("warn", rule, what, fix, numbers)


def ok(rule: str, what: str, **numbers: str) -> CompatibilityFinding:
    """Return that a rule holds."""
    return _finding("ok", rule, what, "", numbers)


def _finding(
    level: CompatibilityLevel, rule: str, what: str, fix: str, numbers: Mapping[str, str]
) -> CompatibilityFinding:
    named = {name.replace("_", " "): text for name, text in numbers.items()}
    return CompatibilityFinding(level, rule, what, named, fix)


def worst(findings: tuple[CompatibilityFinding, ...]) -> CompatibilityLevel:
    """Return the gravest level of `findings`, ok where there is none."""
    return max((found.level for found in findings), key=LEVELS.index, default="ok")
