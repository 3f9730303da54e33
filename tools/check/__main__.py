# SPDX-License-Identifier: Apache-2.0
"""Run the checks: `./dev check [--all] [NAME...]`.

All of them run, whatever fails on the way.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from .command import Failure
from .steps import STEPS, Step

USAGE = """usage: ./dev check [--all] [NAME...]

  --all         also those with a star, which `./dev test` leaves out
"""


def main(names: list[str]) -> int:
    """Run the named steps, all when none is named; one line each as it ends."""
    if "--help" in names or "-h" in names:
        print(USAGE)
        for step in STEPS:
            star = "*" if step.thorough else " "
            print(f" {star}{step.name:<13} {step.purpose}")
        return 0
    everything = "--all" in names
    names = [name for name in names if name != "--all"]
    unknown = sorted(set(names) - {step.name for step in STEPS})
    if unknown:
        known = " ".join(step.name for step in STEPS)
        print(f"check: no such check: {' '.join(unknown)}; there are {known}", file=sys.stderr)
        return 2
    chosen = [
        step
        for step in STEPS
        if step.name in names or (not names and (everything or not step.thorough))
    ]
    # Most of a step is one core's work, and a build's two jobs share what is there.
    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            held = list(pool.map(_run, chosen))
        except KeyboardInterrupt:
            os._exit(130)  # the pool would wait for what runs; tests.supervise ends that
    failed = [step.name for step, ok in zip(chosen, held, strict=True) if not ok]
    if failed:
        print(f"check: {len(failed)} of {len(chosen)} failed: ./dev check {' '.join(failed)}")
    return 1 if failed else 0


def _run(step: Step) -> bool:
    begun = time.monotonic()
    said = ""
    shown = ""
    try:
        result = step.run()
        shown = f"\n{result}" if step.is_report else ""
    except (Failure, OSError) as failure:
        said = f"\n{failure}"
    verdict = "FAIL" if said else "ok"
    # One write, so that two steps that end together do not mix.
    print(
        f"{verdict:<4} {step.name:<13} {time.monotonic() - begun:5.1f} s{said}{shown}\n",
        end="",
        flush=True,
    )
    return not said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
