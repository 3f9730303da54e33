# SPDX-License-Identifier: Apache-2.0
"""What a process does with its card: the options of work.c, in card time."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final

JITTER: Final = 0.2  # of work.c


@dataclass(frozen=True)
class Load:
    """The options of work.c, which says what each means; None leaves it to its own default."""

    kernel_us: float | None = None
    spread: float | None = None
    least_us: float | None = None
    kernels: int | None = None
    graph: int | None = None
    gap_us: float | None = None
    rate: float | None = None
    on_ms: float | None = None
    off_ms: float | None = None

    def arguments(self, *, slow: float, seed: int) -> list[str]:
        """Return the arguments of work.c; equal seeds draw equal kernels and arrivals."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return [
            word
            for name, value in {**given, "slow": slow, "seed": seed}.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]


def mean_us(load: Load) -> float:
    """Return the mean length of a kernel: jitter and spread are log-normal."""
    return (load.kernel_us or 0) * math.exp(((load.spread or 0) ** 2 + JITTER**2) / 2)


def training(kernel_us: float, *, spread: float = 0.8, kernels: int = 200) -> Load:
    """Steps one after another, with 300 us between them for the host."""
    return Load(kernel_us=kernel_us, spread=spread, kernels=kernels, gap_us=300)


def synchronising(kernel_us: float, *, after: int, gap_us: float = 10) -> Load:
    """So many equal kernels, then a wait for them, over and over, as of a thread that polls.

    One that sleeps has a longer gap.
    """
    return Load(kernel_us=kernel_us, spread=0, kernels=after, gap_us=gap_us)


def inference(rate: float) -> Load:
    """Requests of 60 kernels, about 3.4 ms, as they come: a Poisson process of `rate` a second."""
    return Load(kernel_us=50, spread=0.5, least_us=10, kernels=60, rate=rate)


def in_phases(on_ms: float, off_ms: float) -> Load:
    """Trains for a while and leaves the card alone for a while, in turns."""
    return Load(kernel_us=100, spread=0.8, kernels=200, gap_us=300, on_ms=on_ms, off_ms=off_ms)


def replayed(kernel_us: float, *, of: int) -> Load:
    """Graphs of `of` kernels, instantiated once and replayed."""
    return Load(kernel_us=kernel_us, kernels=4 * of, graph=of, gap_us=300)
