# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.mutation [NAME...]`: break each invariant, or these; its tests must fail."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tools.mutation import mutate

_BEGUN = time.monotonic()


def main() -> int:
    """Break invariants; 1: a test did not notice."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="else all of them")
    arguments = parser.parse_args()
    # Whoever ends us has the file that is broken restored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("mutation: interrupted"))
    return mutate.report(arguments.names, _tell)


def _tell(what: str) -> None:
    print(f"{time.monotonic() - _BEGUN:6.1f} s  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
