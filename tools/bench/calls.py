# SPDX-License-Identifier: Apache-2.0
"""Calls of the driver through the filter and past it, in turns: launches, memory, and the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare import abi

from .result import Result
from .tenant import PROFILE, tenant

LAUNCHES: Final = 400
OPEN_BUDGET_NS: Final = 2
BOUNDED_BUDGET_NS: Final = {"launch": 15, "graph launch": 20}
#: The simulated driver does next to nothing for a launch and leaves the first cache as it was, and
#: the older one does as much as a real driver may.
DRIVERS: Final = {PROFILE: "", "t4-driver-520": ", driver 520"}
ALLOCATE_BUDGETS_NS: Final = {1: 30, 64: 60, 300: 100}
INFORMATION_BUDGET_NS: Final = 15
STARTS: Final = 400
START_BUDGET_US: Final = 200
#: That the program has started before it loads the library, beside its first.
THREADS: Final = (0, 1, 16)


def launch() -> Iterator[Result]:
    """Launch kernels and graphs: the gate open, and bounded with nothing in the way."""
    for profile, driver in DRIVERS.items():
        for what, call in (("launch", "launch"), ("graph launch", "graph")):
            with tenant(profile) as made:
                name = f"{what}, gate open{driver}"
                yield made.result(name, call, rounds=LAUNCHES, budget=OPEN_BUDGET_NS)
                name, budget = f"{what}, bounded{driver}", BOUNDED_BUDGET_NS[what]
                gate = abi.GATE_WINDOW
                yield made.result(name, call, rounds=LAUNCHES, budget=budget, gate=gate)


def allocate() -> Iterator[Result]:
    """Allocate and free, alone and after as many processes as the budgets name.

    Once 1 MiB at a time, once among 1024 live buffers of which one drawn at random is replaced.
    """
    with tenant() as made:
        for call, what in {"allocate": "", "random": ", 1024 live, random"}.items():
            for count, budget in ALLOCATE_BUDGETS_NS.items():
                name = f"alloc + free, {_processes(count)}{what}"
                yield made.result(name, call, rounds=2000, budget=budget, processes=count)


def information() -> Iterator[Result]:
    """Ask how much memory is free, with as many processes in the ledger."""
    with tenant() as made:
        for count in ALLOCATE_BUDGETS_NS:
            yield made.result(
                f"cuMemGetInfo, {_processes(count)}",
                "information",
                rounds=2000,
                budget=INFORMATION_BUDGET_NS,
                processes=count,
                absolute=True,
            )


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def startup() -> Iterator[Result]:
    """Load and initialize the driver in fresh processes."""
    with tenant() as made:
        for threads in THREADS:
            yield from made.start_up(STARTS, START_BUDGET_US, threads)
