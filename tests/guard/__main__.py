# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.guard record FILE`, `compare BEFORE [AFTER]`."""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.guard import commands, compare, nodes, rendered, stories

_BEGUN = time.monotonic()
_LOCK = nodes.ROOT.with_suffix(".lock")


def main() -> int:
    """Record this tree, compare two recordings; 1: a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.guard", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recorder = verbs.add_parser("record", help="record what the programs of this tree do")
    recorder.add_argument("file", type=Path)
    comparer = verbs.add_parser("compare", help="print what differs between two recordings")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path, nargs="?", help="else this tree, recorded now")
    comparer.add_argument("--texts", action="store_true", help="compare sentences too")
    comparer.add_argument("--renames", type=Path, default=compare.RENAMES)
    comparer.add_argument("--all", action="store_true", help="print each difference")
    for one in (recorder, comparer):
        one.add_argument("--only", action="append", default=[], choices=_parts(0), metavar="PART")
        one.add_argument("--requests", type=int, default=2000, help="how many are generated")
    arguments = parser.parse_args()
    # Whoever ends us ends the daemons.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("guard: interrupted"))
    if arguments.verb == "record":
        _write(arguments.file, record(arguments.requests, arguments.only))
        return 0
    before = _read(arguments.before)
    after = (
        _read(arguments.after) if arguments.after else record(arguments.requests, arguments.only)
    )
    if arguments.only:
        before, after = ({name: some[name] for name in arguments.only} for some in (before, after))
    rules = compare.AllowedDifferences.read(arguments.renames, texts=arguments.texts)
    return compare.report(before, after, rules, everything=arguments.all)


def record(requests: int, only: Sequence[str]) -> dict[str, Any]:
    """Return the recording of this tree, or `only` of these parts of it."""
    if os.geteuid() != 0:
        sys.exit("guard: starts gpushared, which needs root")
    found = {}
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # recordings have the same folder
        for name, recorded in _parts(requests).items():
            if not only or name in only:
                found[name] = recorded()
                _tell(name)
    return found


def _parts(requests: int) -> dict[str, Callable[[], dict[str, Any]]]:
    lenient = requests * 7 // 10
    strict = requests - lenient
    policy = nodes.POLICY
    return {
        "commands": lambda: commands.record(_tell),
        "rendered": lambda: rendered.record(_tell),
        **{f"story {name}": partial(stories.record, name) for name in stories.STORIES},
        "default node": lambda: nodes.record("default node", {}, 0, lenient, _tell),
        "strict node": lambda: nodes.record("strict node", policy, lenient, strict, _tell),
    }


def _tell(what: str) -> None:
    print(f"{time.monotonic() - _BEGUN:6.1f} s  {what}", file=sys.stderr, flush=True)


def _read(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def _write(path: Path, found: dict[str, Any]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump(found, file)
    _tell(f"{path}, {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    sys.exit(main())
