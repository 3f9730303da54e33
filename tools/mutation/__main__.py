# SPDX-License-Identifier: Apache-2.0
"""Breaks lines of the product, and shows whether a test fails for each."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tools.mutation import mutate
from tools.mutation.invariants import INVARIANTS

_BEGUN = time.monotonic()


def main() -> int:
    """Break lines; 1: no test has failed for one of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    invariants = verbs.add_parser("invariants", help="break each invariant; its tests must fail")
    invariants.add_argument("words", metavar="WORDS", nargs="*", help="of a sentence; else all")
    arguments = parser.parse_args()
    # Whoever ends us has the file that is broken restored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("mutation: interrupted"))
    return mutate.report(INVARIANTS, arguments.words, _tell)


def _tell(what: str) -> None:
    print(f"{time.monotonic() - _BEGUN:6.1f} s  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
