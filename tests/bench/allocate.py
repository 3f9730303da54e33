# SPDX-License-Identifier: Apache-2.0
"""Allocating and freeing, as the quota's ledger grows with the processes that share it."""

from __future__ import annotations

from collections.abc import Iterator

from .result import Result
from .tenant import tenant

BUDGETS_NS = {1: 60, 64: 60, 300: 150}


def measure() -> Iterator[Result]:
    """Allocate 1 MiB and free it, alone and after as many processes as the budgets name."""
    with tenant() as made:
        for slots, budget in BUDGETS_NS.items():
            name = f"alloc + free, {slots} process{'es' if slots > 1 else ''}"
            yield made.result(name, "allocate", rounds=2000, budget=budget, slots=slots)
