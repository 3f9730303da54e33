# SPDX-License-Identifier: Apache-2.0
"""Every symbol of the driver's tables is classified, and what is wrong with a line is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from libhook.table import generate, headers

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_lines_are_in_order() -> None:
    done = subprocess.run(
        [sys.executable, "libhook/table/coverage.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_exports_that_are_not_in_the_tables_are_named(tmp_path: Path) -> None:
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    names = ["cuInit", "cuTomorrow", "cudbgApiInit", "nvmlTomorrow_v2", "other"]
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert generate.unknown(library) == ["cuTomorrow", "nvmlTomorrow_v2"]


def test_a_wheel_that_pip_cannot_fetch_is_an_error_that_shows_the_command(tmp_path: Path) -> None:
    with pytest.raises(headers.DownloadError, match=r"pip download .*not a requirement"):
        headers.download("not a requirement", tmp_path)
