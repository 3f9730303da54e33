# SPDX-License-Identifier: Apache-2.0
"""The dashboards are generated, Grafana can import them, and the reports' sums are right.

tests/system/test_dashboards.py runs their queries.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["rules", "export", "--output", str(tmp_path / "file" / "x")]
    program = Path(sys.executable).parent / "gpushare"
    shown = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert (shown.returncode, "Traceback" in shown.stderr) == (1, False)
    assert str(tmp_path / "file") in shown.stderr
