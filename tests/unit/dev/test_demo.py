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


def test_the_first_picture_fits_a_screen_and_ends_with_the_summary() -> None:
    said = io.StringIO()
    report = Report(said, colour=True)
    for number in range(10):
        report.title(f"Step {number}")
        report.output("one\ntwo\n" + "wide " * (demo.WIDTH // 4))
    report.title("The end")
    shown = demo.pictures(said.getvalue())["demo.svg"]
    assert demo._height(shown) <= demo.LINES
    assert "Step 0" in shown
    assert "Step 9" not in shown
    assert "The end" in shown
