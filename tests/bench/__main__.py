# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks: `./dev bench [NAME...]`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .native import ROOT
from .result import Result, table, write
from .turns import BenchError

# In the order of the design's table of budgets.
ROWS = ("runtime", "create", "docker", "crowd", "launch", "allocate", "information", "register")


def main(names: list[str]) -> int:
    """Measure the named rows, all when none is named; exit status 1 if one is over its budget."""
    unknown = sorted(set(names) - set(ROWS))
    if unknown:
        print(
            f"bench: no such row: {' '.join(unknown)}; there are {' '.join(ROWS)}", file=sys.stderr
        )
        return 2
    if os.geteuid() != 0:
        print("bench: starts containers and makes mounts: run it as root", file=sys.stderr)
        return 1
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(f"bench: others use this machine (load {load:.1f}): rough figures", file=sys.stderr)
    results: list[Result] = []
    failed = []
    for name in names or ROWS:
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        try:
            results += import_module(f"{__package__}.{name}").measure()
        except BenchError as error:
            failed.append(f"bench: {name}: {error}")
    output = ROOT / "build" / "bench.json"
    write(results, output)
    print(table(results))
    print("\nadded: the median of the rounds' differences; by exec: what only executes runc adds")
    print(f"written to {output.relative_to(ROOT)}")
    for line in failed:
        print(line, file=sys.stderr)
    over = [result.name for result in results if result.met is False]
    if over:
        print(f"bench: over budget: {', '.join(over)}", file=sys.stderr)
    return 1 if failed or over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
