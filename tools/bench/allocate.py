# SPDX-License-Identifier: Apache-2.0
"""Allocating and freeing, as the quota's ledger grows with the processes that share it."""

from __future__ import annotations

from collections.abc import Iterator

from .result import Result
from .tenant import tenant

BUDGETS_NS = {1: 60, 64: 60, 300: 150}


def measure() -> Iterator[Result]:
    """Allocate and free, alone and after as many processes as the budgets name.

    Once 1 MiB at a time, once among 1024 live buffers of which one drawn at random is replaced.
    """
    with tenant() as made:
        for call, what in {"allocate": "", "random": ", 1024 live, random"}.items():
            for processes, budget in BUDGETS_NS.items():
                count = f"{processes} process{'es' if processes > 1 else ''}"
                yield made.result(
                    f"alloc + free, {count}{what}",
                    call,
                    rounds=2000,
                    budget=budget,
                    processes=processes,
                )
