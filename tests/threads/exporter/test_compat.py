# SPDX-License-Identifier: Apache-2.0
"""Others' names for the same figures: off, unless they are asked for, and in others' units."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("asked", ["nvidia", "hami,", "HAMI", ""])
def test_a_name_that_there_is_none_of_is_a_usage_error(asked: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpushare.exporter", f"--compat={asked}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Use, for example, --compat=hami,dcgm" in done.stderr
