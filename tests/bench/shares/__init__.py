# SPDX-License-Identifier: Apache-2.0
"""How exactly shares of compute hold, on simulated cards, beside the bare simulated driver.

The runs of a scenario (with gpushare, native, and one tenant alone) go side by side, each on a
machine of its own: what disturbs one disturbs all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .catalogue import SCENARIOS
from .figure import Figure
from .machine import Programs, measure_variant
from .scenario import Measured, Scenario

SECONDS: Final = 20.0  # of card time, a row
NICENESS: Final = -10  # what else this machine does is not what is measured


def select(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Return the scenarios of those names, all where none is named."""
    return tuple(scenario for scenario in SCENARIOS if not names or scenario.name in names)


def measure(
    scenario: Scenario, *, seconds: float = SECONDS, slow: int | None = None
) -> list[Figure]:
    """Measure a scenario for so much card time; `slow` replaces its own. BenchError."""
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-", dir="/var/tmp") as folder:
        programs = Programs.build(Path(folder))
        with _preferred():
            found = _side_by_side(programs, Path(folder), scenario, seconds, slow or scenario.slow)
    return [figure for judge in scenario.judges for figure in judge(found)]


def _side_by_side(
    programs: Programs, folder: Path, scenario: Scenario, seconds: float, slow: float
) -> Measured:
    variants = ["gpushare", "native", *(["alone"] if scenario.alone else [])]
    with ThreadPoolExecutor(len(variants)) as pool:
        runs = {
            variant: pool.submit(
                measure_variant, programs, folder, scenario, slow, seconds, variant
            )
            for variant in variants
        }
    alone = runs["alone"].result() if scenario.alone else None
    return Measured(scenario, slow, runs["native"].result(), runs["gpushare"].result(), alone)


@contextmanager
def _preferred() -> Iterator[None]:
    """Let what is started meanwhile go before other processes."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
