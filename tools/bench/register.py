# SPDX-License-Identifier: Apache-2.0
"""Processes of one container that start at once and want the driver."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from .result import Result
from .tenant import tenant

PROCESSES = 300
BUDGET_MS = 1000
ROUNDS = 7


def measure() -> Iterator[Result]:
    """Let 300 processes initialise the driver, through the filter and without it in turns."""
    with tenant() as made:
        pairs = [
            (made.register(PROCESSES), made.register(PROCESSES, filtered=False))
            for _ in range(ROUNDS)
        ]
        yield Result(
            name=f"{PROCESSES} processes start",
            unit="ms",
            value=statistics.median(through for through, _ in pairs),
            baseline=statistics.median(bare for _, bare in pairs),
            delta=statistics.median(through - bare for through, bare in pairs),
            budget=BUDGET_MS,
            absolute=True,
        )
