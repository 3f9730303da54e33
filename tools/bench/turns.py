# SPDX-License-Identifier: Apache-2.0
"""Measures variants of one thing in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .result import Result, median_interval, percentile

Times = dict[str, float]
"""What one go measured: milliseconds (or what `compare` is told) by the name of the part."""


class BenchError(Exception):
    """A row cannot be measured; the message says why and what to do."""


class Series:
    """The times of every variant and part, round by round."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, variant: str, times: Times) -> None:
        """Take one go of `variant`."""
        for part, milliseconds in times.items():
            self._times[variant, part].append(milliseconds)

    def compare(
        self,
        part: str,
        variant: str,
        baseline: str,
        *,
        name: str,
        budget: float | None = None,
        floor: str | None = None,
        unit: str = "ms",
    ) -> Result:
        """Return how `variant` differs from `baseline` in `part`, and how `floor` does."""
        with_it, without = self._times[variant, part], self._times[baseline, part]
        differences = self._differences(part, variant, baseline)
        return Result(
            name=name,
            unit=unit,
            value=statistics.median(with_it),
            baseline=statistics.median(without),
            delta=statistics.median(differences),
            interval=median_interval(differences),
            budget=budget,
            p90=(percentile(with_it, 90), percentile(without, 90)),
            floor=None
            if floor is None
            else statistics.median(self._differences(part, floor, baseline)),
        )

    def _differences(self, part: str, variant: str, baseline: str) -> list[float]:
        pairs = zip(self._times[variant, part], self._times[baseline, part], strict=True)
        return [a - b for a, b in pairs]


def take(variants: Mapping[str, Callable[[], Times]], rounds: int) -> Series:
    """Let every variant go once a round, in an order drawn anew; one more round to warm up."""
    order = list(variants)
    draw = random.Random(1)
    series = Series()
    for number in range(rounds + 1):
        draw.shuffle(order)
        for variant in order:
            times = variants[variant]()
            if number > 0:
                series.add(variant, times)
    return series


def spawn(argv: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> float:
    """Run a program to its end and return the milliseconds it took; BenchError unless it exits 0.

    posix_spawn rather than subprocess: what Python adds is the same for all, and little. Its output
    goes to `log`, a file: a pipe would be held open by a container that outlives the program.
    """
    words = [str(word) for word in argv]
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, out, 2),
    ]
    try:
        begun = time.perf_counter_ns()
        # Python ignores SIGPIPE, and so would runc's children.
        child = os.posix_spawn(
            words[0], words, dict(environment), file_actions=actions, setsigdef=[signal.SIGPIPE]
        )
        _, status = os.waitpid(child, 0)
        elapsed = time.perf_counter_ns() - begun
    finally:
        os.close(out)
    if status != 0:
        said = log.read_text(errors="replace").strip()
        code = os.waitstatus_to_exitcode(status)
        raise BenchError(f"{' '.join(words)}: exit status {code}: {said}")
    return elapsed / 1e6
