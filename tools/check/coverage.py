# SPDX-License-Identifier: Apache-2.0
"""Every driver function is classified, and the libraries handle it as coverage.txt says."""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

from libhook.table import coverage, elf

from .command import Failure, run
from .symbols import FILTERS


def check() -> None:
    """Check coverage.txt and the interposer libraries that the package installs."""
    run(sys.executable, "libhook/table/coverage.py", "--check")
    shipped = [Path(str(file.locate())) for file in distribution("gpushare-runtime").files or ()]
    filters = [path for path in shipped if path.parent.name == "lib" and path.name in FILTERS]
    if len(filters) != len(FILTERS):
        raise Failure(f"not installed: both of {' '.join(FILTERS)}")
    lines = coverage.read(coverage.SOURCE.read_text(encoding="utf-8"))
    assigned = coverage.assign(lines, coverage.exported())
    wrong = [
        f"{symbol}: {why}" for symbol, why in coverage.unlike(assigned, map(elf.read, filters))
    ]
    if wrong:
        raise Failure("\n".join(wrong))
