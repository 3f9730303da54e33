# SPDX-License-Identifier: Apache-2.0
"""The start of one program: it loads the driver's library and initializes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .result import Result
from .tenant import tenant

ROUNDS: Final = 400
BUDGET_US: Final = 200
#: That the program has started before it loads the library, beside its first.
THREADS: Final = (0, 1, 16)


def measure() -> Iterator[Result]:
    """Load and initialize the driver in fresh processes, through the filter and past it."""
    with tenant() as made:
        for threads in THREADS:
            yield from made.start_up(ROUNDS, BUDGET_US, threads)
