# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks: `./dev bench [NAME...]`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection

from . import shares
from .result import Result, table
from .shares.catalogue import SCENARIOS
from .turns import BenchError

#: In the order of the design's table of budgets; a row's file and function, where not its own name.
COSTS = {
    **dict.fromkeys(("runtime", "create"), ""),
    "create-parts": "create.parts",
    **dict.fromkeys(("docker", "starts"), ""),
    **{row: f"calls.{row}" for row in ("launch", "allocate", "information", "startup")},
    "idle": "",
    "node-agent": "node_agent.measure",
    **dict.fromkeys(("audit", "cli", "evict"), ""),
}
SHARES = tuple(f"shares-{scenario.name}" for scenario in SCENARIOS)
ROWS = (*COSTS, "shares", *SHARES)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Measure the named rows, all when none is named.",
        epilog=f"rows: {' '.join(ROWS)}",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="e.g. launch shares-A")
    parser.add_argument(
        "--seconds", type=float, default=shares.SECONDS, help="card time of a row of shares"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(ROWS))
    if unknown:
        parser.error(f"no such row: {' '.join(unknown)}")
    return options


def _costs(names: Sequence[str], failed: list[str]) -> list[Result]:
    """Measure each row in a process of its own: none sees what another did to its process."""
    results: list[Result] = []
    context = get_context("fork")
    for name in names:
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_measure, args=(name, theirs))
        process.start()
        theirs.close()
        try:
            measured: list[Result] | str = ours.recv()
        except EOFError:
            measured = "its process has ended"
        process.join()
        if isinstance(measured, str):
            failed.append(f"bench: {name}: {measured}")
        else:
            results += measured
    return results


def _measure(name: str, answer: Connection) -> None:
    module, _, function = (COSTS[name] or f"{name}.measure").partition(".")
    try:
        answer.send([*getattr(import_module(f"{__package__}.{module}"), function)()])
    except BenchError as error:
        answer.send(str(error))
    except Exception as error:  # noqa: BLE001 - the other rows are still to come
        traceback.print_exc()
        answer.send(f"{type(error).__name__}: {error}")


def _shares(options: argparse.Namespace, failed: list[str]) -> list[Result]:
    """Measure the scenarios that were named."""
    names = [name.removeprefix("shares-") for name in options.names if name in SHARES]
    if "shares" in options.names or not options.names:
        names = [scenario.name for scenario in SCENARIOS]
    if not names:
        return []
    print(f"bench: shares {' '.join(names)} ...", file=sys.stderr, flush=True)
    chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
    return shares.measure(chosen, seconds=options.seconds, failed=failed)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; exit status 1 if a row is over its budget, 2 for words not understood."""
    options = _options(arguments)
    if os.geteuid() != 0:
        print("bench: starts containers and makes mounts: run it as root", file=sys.stderr)
        return 1
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(f"bench: others use this machine (load {load:.1f}): rough figures", file=sys.stderr)
    failed: list[str] = []
    results = _costs([name for name in options.names or COSTS if name in COSTS], failed)
    results += _shares(options, failed)
    over = [result for result in results if result.met is False]
    print(table([*over, *(result for result in results if result not in over)]))
    print(
        "\nadded: the median of the rounds' differences; between: where it is with 95 % probability"
    )
    print("exec: what a program adds that only executes runc")
    print("of shares, without: the same processes at the same time on the bare simulated driver")
    for line in failed:
        print(line, file=sys.stderr)
    if over:
        names = ", ".join(result.name for result in over)
        print(f"bench: over budget: {names}", file=sys.stderr)
    return 1 if failed or over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
