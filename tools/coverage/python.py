# SPDX-License-Identifier: Apache-2.0
"""Runs pytest with every Python of .venv measured, and tells which statements were executed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import coverage

from tools.coverage import start

_PTH: Final = Path(sysconfig.get_path("purelib"), "gpushare_measured.pth")


def run(arguments: Sequence[str], database: Path) -> int:
    """Run pytest with `arguments`; write what was executed, and by which test, to `database`."""
    shutil.rmtree(start.RECORDS, ignore_errors=True)
    start.RECORDS.mkdir(parents=True)
    start.RECORDS.chmod(0o1777)  # programs of other users write there, too
    command = [sys.executable, "-m", "pytest", "-p", "tools.coverage.contexts", *arguments]
    program = repr(start.__file__)
    _PTH.write_text(f"import runpy; runpy.run_path({program}, run_name='__main__')\n")
    try:
        done = subprocess.run(command, cwd=start.ROOT, check=False)
    finally:
        _PTH.unlink()
    database.unlink(missing_ok=True)
    made = coverage.Coverage(data_file=str(database), config_file=False, messages=False)
    # A process that was killed while it wrote leaves a journal beside its record.
    records = [path for path in start.RECORDS.iterdir() if not path.name.endswith("-journal")]
    made.combine([str(path) for path in records])
    made.save()
    return done.returncode


def executed(database: Path) -> dict[str, dict[int, bool]]:
    """Return the statements of each file of gpushare/, and whether each was executed."""
    measured = coverage.Coverage(data_file=str(database), config_file=False)
    measured.load()
    found = {}
    for path in sorted(start.ROOT.glob("gpushare/**/*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        name = str(path.relative_to(start.ROOT))
        found[name] = {number: number not in missing for number in statements}
    return found
