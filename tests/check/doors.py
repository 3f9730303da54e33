# SPDX-License-Identifier: Apache-2.0
"""Every call of the driver is classified, and the filters do as libhook/table/doors.txt says."""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

from libhook.table import doors, elf

from .command import Failure, run
from .symbols import FILTERS


def check() -> None:
    """Look at doors.txt, and at the filters that the package installs."""
    run(sys.executable, "libhook/table/doors.py", "--check")
    shipped = [Path(str(file.locate())) for file in distribution("gpushare-runtime").files or ()]
    filters = [path for path in shipped if path.parent.name == "lib" and path.name in FILTERS]
    if len(filters) != len(FILTERS):
        raise Failure(f"not installed: both of {' '.join(FILTERS)}")
    lines = doors.read(doors.SOURCE.read_text(encoding="utf-8"))
    assigned = doors.assign(lines, doors.exported())
    wrong = [f"{symbol}: {why}" for symbol, why in doors.unlike(assigned, map(elf.read, filters))]
    if wrong:
        raise Failure("\n".join(wrong))
