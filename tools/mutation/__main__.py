# SPDX-License-Identifier: Apache-2.0
"""Breaks lines of the product, and shows whether a test fails for each."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tools.mutation import drawn, mutate
from tools.mutation.invariants import INVARIANTS
from tools.mutation.mutate import ROOT
from tools.mutation.operations import operations
from tools.mutation.paths import paths

_BEGUN = time.monotonic()


def main() -> int:
    """Break lines; 1: no test has failed for one of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    invariants = verbs.add_parser("invariants", help="break each invariant; its tests must fail")
    charged = verbs.add_parser("paths", help="break each charged function; its test must fail")
    served = verbs.add_parser("operations", help="break each operation; a test must fail")
    for one in (invariants, charged, served):
        one.add_argument("names", metavar="NAME", nargs="*", help="else all of them")
    runner = verbs.add_parser("run", help="try those of FILE again, and write its last column")
    runner.add_argument("file", type=Path, metavar="FILE")
    for one in (runner, served):
        one.add_argument("--database", type=Path, default=ROOT / "build/coverage/python.db")
    arguments = parser.parse_args()
    # Whoever ends us has the file that is broken restored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("mutation: interrupted"))
    if arguments.verb == "invariants":
        return mutate.report(INVARIANTS, arguments.names, _tell)
    if arguments.verb == "paths":
        return mutate.report(paths(), arguments.names, _tell)
    if arguments.verb == "operations":
        chosen = {name: one for name, one in operations().items() if name in arguments.names}
        return 1 if drawn.report(chosen or operations(), arguments.database) else 0
    return 1 if drawn.try_again(arguments.file, arguments.database) else 0


def _tell(what: str) -> None:
    print(f"{time.monotonic() - _BEGUN:6.1f} s  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
