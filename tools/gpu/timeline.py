# SPDX-License-Identifier: Apache-2.0
"""What the logs of contexts that shared a card say: which of them ran when, and what a switch cost.

A log is the card's own clock as one kernel saw it (kernels/trace.ptx): the clock runs on while
another context has the card, and is the same for all, so the logs of several processes fit
together. All times are that clock's nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tools.bench.result import percentile


@dataclass(frozen=True, order=True)
class ContextRun:
    """A stretch in which context `owner` had the card."""

    start: int
    end: int
    owner: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Log:
    """One kernel's own account: from `first` to `last`, less the `gaps` (before, after)."""

    first: int
    last: int
    gaps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Log:
        """Read a trace's answer; ValueError where no kernel wrote it, or more than it had room."""
        gaps = tuple((before, after) for before, after in answer["log"])
        if not answer["looks"]:
            raise ValueError("the kernel looked at no clock: this driver ran none")
        if answer["jumps"] > len(gaps):
            raise ValueError(f"{answer['jumps']} gaps, and room for {len(gaps)}")
        return cls(answer["first"], answer["last"], gaps)

    def runs(self, owner: int) -> list[ContextRun]:
        starts = [self.first, *(after for _, after in self.gaps)]
        ends = [*(before for before, _ in self.gaps), self.last]
        return [ContextRun(start, end, owner) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Sharing:
    """What several logs say of the time in which all their kernels were at it.

    `slices_ns` are whole runs between another's; `switches_ns` the time between them.
    """

    together_ns: int
    slices_ns: tuple[int, ...]
    switches_ns: tuple[int, ...]
    shares: tuple[float, ...]  # of `together_ns`, by owner
    overlap_ns: int  # in which two ran at once


def sharing(logs: Sequence[Log]) -> Sharing:
    """Fit `logs` together; ValueError where their kernels ran one after the other."""
    begin = max(log.first for log in logs)
    end = min(log.last for log in logs)
    if end <= begin:
        raise ValueError("the kernels ran one after the other, not together")
    runs = sorted(run for owner, log in enumerate(logs) for run in log.runs(owner))
    inside = [run for run in runs if run.end > begin and run.start < end]
    slices = [
        run.length
        for before, run, after in zip(inside, inside[1:], inside[2:], strict=False)
        if before.owner != run.owner != after.owner
    ]
    gaps = [
        after.start - before.end
        for before, after in pairwise(inside)
        if before.owner != after.owner
    ]
    return Sharing(
        together_ns=end - begin,
        slices_ns=tuple(slices),
        switches_ns=tuple(gap for gap in gaps if gap >= 0),
        shares=tuple(_share(inside, owner, begin, end) for owner in range(len(logs))),
        overlap_ns=-sum(gap for gap in gaps if gap < 0),
    )


def _share(runs: Iterable[ContextRun], owner: int, begin: int, end: int) -> float:
    held = sum(min(run.end, end) - max(run.start, begin) for run in runs if run.owner == owner)
    return held / (end - begin)


def spread(values: Sequence[float]) -> str:
    """Return in words where `values` lie, in microseconds."""
    low, high = (percentile(values, percent) / 1e3 for percent in (10, 90))
    return f"{len(values)} seen, 10th to 90th percentile {low:.4g} to {high:.4g} us"
