# SPDX-License-Identifier: Apache-2.0
"""Launches of a kernel and of a graph: the gate open, and bounded with nothing in the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare import abi

from .result import Result
from .tenant import tenant

ROUNDS: Final = 400
OPEN_BUDGET_NS: Final = 3
BOUNDED_BUDGET_NS: Final = 20


def measure() -> Iterator[Result]:
    """Launch through the filter and past it, by turns."""
    for what, call in (("launch", "launch"), ("graph launch", "graph")):
        with tenant() as made:
            yield made.result(f"{what}, gate open", call, rounds=ROUNDS, budget=OPEN_BUDGET_NS)
            yield made.result(
                f"{what}, bounded", call,
                rounds=ROUNDS, budget=BOUNDED_BUDGET_NS, gate=abi.GATE_WINDOW,
            )  # fmt: skip
    with tenant(cards=2) as made:
        yield made.result("launch, 2 cards, all open", "launch", rounds=ROUNDS, budget=None)
