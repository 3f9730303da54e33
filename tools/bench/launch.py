# SPDX-License-Identifier: Apache-2.0
"""Launches of a kernel and of a graph: the gate open, and bounded with nothing in the way.

All of it over two drivers: the simulated one does next to nothing for a launch and leaves the first
cache as it was, and the older one does as much as a real driver may.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare import abi

from .result import Result
from .tenant import PROFILE, tenant

ROUNDS: Final = 400
OPEN_BUDGET_NS: Final = 2
BOUNDED_BUDGET_NS: Final = {"launch": 15, "graph launch": 20}
DRIVERS: Final = {PROFILE: "", "t4-driver-520": ", driver 520"}


def measure() -> Iterator[Result]:
    """Launch through the filter and past it, by turns."""
    for profile, driver in DRIVERS.items():
        yield from _launches(profile, driver)
    with tenant(cards=2) as made:
        yield made.result(
            "launch, 2 cards, all open", "launch", rounds=ROUNDS, budget=OPEN_BUDGET_NS
        )


def _launches(profile: str, driver: str) -> Iterator[Result]:
    for what, call in (("launch", "launch"), ("graph launch", "graph")):
        with tenant(profile=profile) as made:
            yield made.result(
                f"{what}, gate open{driver}", call, rounds=ROUNDS, budget=OPEN_BUDGET_NS
            )
            yield made.result(
                f"{what}, bounded{driver}", call,
                rounds=ROUNDS, budget=BOUNDED_BUDGET_NS[what], gate=abi.GATE_WINDOW,
            )  # fmt: skip
    with tenant(profile=profile) as made:
        yield made.result(
            f"4 launches and a wait, bounded{driver}", "waited",
            rounds=ROUNDS // 4, budget=None, gate=abi.GATE_WINDOW,
        )  # fmt: skip
