# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.coverage [ARGUMENT...]`: which lines of Python the tests execute.

The arguments are pytest's: paths of tests and its options. `./dev setup --all` installs coverage.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tools.coverage import python
from tools.coverage.start import ROOT


def main() -> int:
    """Run the tests, print a table; return pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage", description=__doc__)
    parser.add_argument("--database", type=Path, default=ROOT / "build/coverage/python.db")
    parser.add_argument("--count-only", action="store_true", help="what an earlier run has written")
    arguments, of_pytest = parser.parse_known_args()
    status = 0
    if not arguments.count_only:
        status = python.run(of_pytest, arguments.database)
    print(_table(python.executed(arguments.database)))
    return status


def _table(files: Mapping[str, Mapping[int, bool]]) -> str:
    """Return a table of Markdown with a row for each package, and for all."""
    known: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    for name, lines in files.items():
        package, _, _ = name.removeprefix("gpushare/").partition("/")
        for part in (package if "/" in name.removeprefix("gpushare/") else "gpushare", "all"):
            known[part] += len(lines)
            executed[part] += sum(lines.values())
    rows = ["| part | lines | executed | % |", "|---|---|---|---|"]
    rows += [
        f"| {part} | {known[part]} | {executed[part]} | {100 * executed[part] / known[part]:.2f} |"
        for part in sorted(known, key=lambda part: (part == "all", part))
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
