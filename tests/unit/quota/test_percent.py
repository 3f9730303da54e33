# SPDX-License-Identifier: Apache-2.0
"""Percentages of a card's memory: what is read, exactly, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.errors import BadValue
from gpushare.quota.keys import KEYS
from gpushare.quota.request import Percent
from gpushare.quota.values import format_percent

read = KEYS["memory-percent"].parse


@pytest.mark.parametrize(
    ("text", "percent", "shown"),
    [
        ("25", 25, "25 %"),
        (" 12.5 ", Fraction(25, 2), "12.5 %"),
        ("80/3", Fraction(80, 3), "26.67 %"),
        ("200/2", 100, "100 %"),
        ("0.01", Fraction(1, 100), "0.01 %"),
    ],
)
def test_a_percentage_is_read_exactly(text: str, percent: Percent, shown: str) -> None:
    found = read(text)
    assert found == percent
    assert isinstance(found, (int, Fraction))
    assert format_percent(found) == shown


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "0/3", "1/0", "100.01", "301/3", "-1", "1e1", "x"]
)
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="not a percentage of a card's memory") as refusal:
        read(text)
    assert refusal.value.fix == "write a number up to 100, e.g. 25, 12.5 or 100/3"


@given(st.fractions(Fraction(1, 10**9), 100, max_denominator=10**9))
def test_each_ratio_is_read_back(percent: Fraction) -> None:
    assert read(str(percent)) == percent
