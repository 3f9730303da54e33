# SPDX-License-Identifier: Apache-2.0
"""How exactly shares of compute hold, on simulated cards, beside the bare simulated driver.

The runs of a scenario (with gpushare, native, and one tenant alone) go side by side, each on a
machine of its own: what disturbs one disturbs all. Most go in slow motion: a machine with two cores
wakes a process up to a millisecond late now and then, which a card would not wait for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests import leftovers
from tools.bench.result import Result
from tools.bench.turns import BenchError

from .machine import Programs, measure_variant
from .scenario import Scenario, ScenarioRuns

SECONDS: Final = 20.0  # of card time, a row
TOGETHER: Final = 9  # rows in slow motion at a time: so slow, they leave the machine half idle
NICENESS: Final = -10  # what else this machine does is not what is measured


def measure(
    chosen: Sequence[Scenario], *, seconds: float = SECONDS, failed: list[str]
) -> list[Result]:
    """Measure scenarios for so much card time each.

    Those in slow motion go together, those in real time one by one. What could not be measured is
    added to `failed`.
    """
    results: dict[str, list[Result]] = {}

    def one(scenario: Scenario) -> None:
        try:
            found = _side_by_side(programs, folder, scenario, seconds)
        except BenchError as error:
            failed.append(f"bench: shares-{scenario.name}: {error}")
            return
        results[scenario.name] = [made for judge in scenario.judges for made in judge(found)]
        motion = "in real time" if scenario.slow == 1 else f"time scale {scenario.slow}"
        late = f"this machine late by up to {found.gpushare.late_ms:.1f} ms"
        words = f"{scenario.title} ({seconds:g} s of card time, {motion}, {late})"
        print(f"bench: shares-{scenario.name} measured: {words}", file=sys.stderr, flush=True)

    with _in_memory() as folder, _preferred():
        programs = Programs.build(folder)
        with ThreadPoolExecutor(TOGETHER) as pool:
            list(pool.map(one, [each for each in chosen if each.slow > 1]))
        for scenario in chosen:
            if scenario.slow == 1:
                one(scenario)
    return [result for each in chosen for result in results.get(each.name, [])]


def _side_by_side(
    programs: Programs, folder: Path, scenario: Scenario, seconds: float
) -> ScenarioRuns:
    variants = ["gpushare", "native", *(["alone"] if scenario.alone else [])]
    with ThreadPoolExecutor(len(variants)) as pool:
        runs = {
            variant: pool.submit(measure_variant, programs, folder, scenario, seconds, variant)
            for variant in variants
        }
    alone = runs["alone"].result() if scenario.alone else None
    return ScenarioRuns(scenario, runs["native"].result(), runs["gpushare"].result(), alone)


@contextmanager
def _in_memory() -> Iterator[Path]:
    """Make a folder on a file system in memory.

    Cards, pages and logs are files that are written to all the time. On a disk such a write waits
    now and then until the one before has reached it: for as long as others keep it busy.
    """
    with leftovers.folder("gpushare-bench-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)


@contextmanager
def _preferred() -> Iterator[None]:
    """Let what is started meanwhile go before other processes."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
