# SPDX-License-Identifier: Apache-2.0
"""Text is as wide as a terminal shows it, and the help page fits."""

from __future__ import annotations

import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli.text import printable
from gpushare.cli.top import help_lines
from gpushare.cli.top.columns import clip, width
from gpushare.cli.top.keys import HELP
from gpushare.cli.top.render import Size
from tests.properties import any_text


@pytest.mark.parametrize(
    ("text", "columns"),
    [("train", 5), ("日本", 4), ("e\u0301", 1), ("한국어", 6), ("", 0), ("🚀", 2)],
)
def test_wide_letters_take_two_columns_and_combining_marks_none(text: str, columns: int) -> None:
    assert width(text) == columns == wcwidth.wcswidth(text)


@given(any_text().map(printable), st.integers(0, 40))
def test_a_clipped_text_fits_and_begins_as_before(text: str, most: int) -> None:
    shown = clip(text, most)
    assert width(shown) <= most
    assert text.startswith(shown.removesuffix("…"))
    assert (shown == text) == (width(text) <= most)


def test_the_whole_page_fits_a_terminal_of_80_columns_and_24_lines() -> None:
    assert help_lines(Size(80, 24)) == HELP.splitlines()
