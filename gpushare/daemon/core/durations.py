# SPDX-License-Identifier: Apache-2.0
"""How long the operations take that a container's start waits for, since gpushared started."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left
from typing import Final

from gpushare.metrics_schema import BOUNDS, OperationMetrics

#: What launcher, hook and `gpushare run` ask.
TIMED: Final = ("create", "bind", "release", "open")


class Durations:
    """Counts since the daemon's start. Any thread may note and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics = {
            operation: OperationMetrics(buckets=[0] * (len(BOUNDS) + 1), seconds=0.0, failures={})
            for operation in TIMED
        }

    def note(self, op: object, seconds: float, failure: str | None = None) -> None:
        """Note that `op` was answered after `seconds`; `failure` is the code of a refusal."""
        metrics = self._metrics.get(op) if isinstance(op, str) else None
        if metrics is None:
            return
        with self._lock:
            metrics["buckets"][bisect_left(BOUNDS, seconds)] += 1
            metrics["seconds"] += seconds
            if failure is not None:
                metrics["failures"][failure] = metrics["failures"].get(failure, 0) + 1

    def figures(self) -> dict[str, OperationMetrics]:
        """Return what was noted."""
        with self._lock:
            return copy.deepcopy(self._metrics)
