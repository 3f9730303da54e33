# SPDX-License-Identifier: Apache-2.0
"""The help page fits the terminal."""

from __future__ import annotations

import pytest

from gpushare.cli.top import help_lines
from gpushare.cli.top.keys import CHANGES, HELP, UiState
from gpushare.cli.top.render import Size


def test_the_whole_page_fits_a_terminal_of_80_columns_and_24_lines() -> None:
    assert help_lines(UiState(may_change=True), Size(80, 24)) == (HELP + CHANGES).splitlines()


@pytest.mark.parametrize("columns", [30, 50, 79])
def test_no_word_is_lost_on_a_narrower_one(columns: int) -> None:
    lines = help_lines(UiState(may_change=True), Size(columns, 200))
    assert max(map(len, lines)) <= columns
    assert " ".join(lines).split() == (HELP + CHANGES).split()
