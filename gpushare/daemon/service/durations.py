# SPDX-License-Identifier: Apache-2.0
"""How long the operations took that a container's start or end waits for, and why some failed.

From the packet to the answer, so the wait for the thread is in it. What is kept is of fixed size: a
row of buckets for each operation, a count for each code of a refusal.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from gpushare.figures import BOUNDS, Operation

#: What launcher, hook and `gpushare run` ask.
TIMED: Final = ("create", "bind", "release", "open")


@dataclass
class _Row:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


class Durations:
    """Counts since the daemon's start. Any thread may note and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = {op: _Row() for op in TIMED}

    def note(self, op: object, seconds: float, failure: str | None = None) -> None:
        """Note that `op` was answered after `seconds`; `failure` is the code of a refusal."""
        row = self._rows.get(op) if isinstance(op, str) else None
        if row is None:
            return
        with self._lock:
            row.buckets[bisect_left(BOUNDS, seconds)] += 1
            row.seconds += seconds
            if failure is not None:
                row.failures[failure] = row.failures.get(failure, 0) + 1

    def figures(self) -> dict[str, Operation]:
        """Return what was noted."""
        with self._lock:
            return {
                op: Operation(
                    buckets=list(row.buckets), seconds=row.seconds, failures=dict(row.failures)
                )
                for op, row in self._rows.items()
            }
