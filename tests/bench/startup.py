# SPDX-License-Identifier: Apache-2.0
"""The start of one program: it loads the driver's library and initializes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .result import Result
from .tenant import tenant

ROUNDS: Final = 400
BUDGET_US: Final = 200


def measure() -> Iterator[Result]:
    """Load and initialize the driver in fresh processes, through the filter and past it."""
    with tenant() as made:
        yield from made.start_up(ROUNDS, BUDGET_US)
