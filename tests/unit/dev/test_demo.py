# SPDX-License-Identifier: Apache-2.0
"""What the demo's pictures show."""

from __future__ import annotations

import io

from gpushare.verify import Report
from tests import demo


def test_a_step_that_has_a_picture_of_its_own_is_not_in_the_other() -> None:
    said = io.StringIO()
    report = Report(said, colour=True)
    for title in ("Two containers", "Where is the memory of train?", "The end"):
        report.title(title)
        report.output(f"of {title}\n\nand more\n")
    found = demo.pictures(said.getvalue())
    assert found.keys() == {"demo.svg", "why.svg"}
    assert "of Where" in found["why.svg"]
    assert "and more" in found["why.svg"]
    assert [line for line in found["demo.svg"].splitlines() if "Two" in line or "end" in line]
    assert "Where" not in found["demo.svg"]
