# SPDX-License-Identifier: Apache-2.0
"""What systemd thinks of the unit is what the documentation says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.stack import Stack

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "packaging/systemd/gpushared.service"
PAGE = ROOT / "docs/explanation/hardening.md"


def test_the_figure_of_the_page_is_that_of_systemd(stage: Stack) -> None:
    written = stage.root / UNIT.name
    written.write_bytes(UNIT.read_bytes())
    said = [
        subprocess.run(
            stage.argv("systemd-analyze", *words), check=True, capture_output=True, text=True
        ).stdout
        for words in (("--version",), ("security", "--offline=true", "--no-pager", str(written)))
    ]
    version = re.search(r"^systemd (\d+)", said[0])
    exposure = re.search(r"Overall exposure level for gpushared.service: ([0-9.]+)", said[1])
    figures = dict(re.findall(r"^\| (\d+) \| ([0-9.]+) \|$", PAGE.read_text(), re.MULTILINE))
    assert version is not None
    assert exposure is not None
    assert figures[version[1]] == exposure[1]
