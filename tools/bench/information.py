# SPDX-License-Identifier: Apache-2.0
"""cuMemGetInfo, which shows the tenant's slice."""

from __future__ import annotations

from collections.abc import Iterator

from .result import Result
from .tenant import tenant

BUDGET_NS = 50


def measure() -> Iterator[Result]:
    """Ask how much memory is free, with as many processes in the ledger."""
    with tenant() as made:
        for processes in (1, 64, 300):
            yield made.result(
                f"cuMemGetInfo, {processes} process{'es' if processes > 1 else ''}",
                "information",
                rounds=2000,
                budget=BUDGET_NS,
                processes=processes,
                absolute=True,
            )
