# SPDX-License-Identifier: Apache-2.0
"""What is judged, and what comes of it. Plain values: who has found them out does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpushare.compat.matrix import BASELINE
from gpushare.compat.version import Version

Level: TypeAlias = Literal["ok", "warn", "block"]
Backend: TypeAlias = Literal["interposer", "exclusive", "mps", "mig"]

LEVELS: Final[tuple[Level, ...]] = ("ok", "warn", "block")
BACKENDS: Final[tuple[Backend, ...]] = ("interposer", "exclusive", "mps", "mig")


@dataclass(frozen=True)
class Card:
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
    cards: tuple[Card, ...] = ()
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
class Finding:
    """What one rule says: `what` in a sentence, the figures it rests on, and what to do."""

    level: Level
    rule: str
    what: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    fix: str = ""

    def __str__(self) -> str:
        told = f"{self.what} ({self.rule})"
        return f"{told}; {self.fix}" if self.fix else told


def worst(findings: tuple[Finding, ...]) -> Level:
    """Return the gravest level of `findings`, ok where there is none."""
    return max((found.level for found in findings), key=LEVELS.index, default="ok")
