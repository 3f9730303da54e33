# SPDX-License-Identifier: Apache-2.0
"""Sizes and percentages of memory: what is read, exactly, what is refused, and what is shown."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.errors import BadValue
from gpushare.quota.keys import KEYS
from gpushare.quota.request import Percent
from gpushare.quota.size import MAX_BYTES, exact_size, format_size, format_use, parse_size
from gpushare.quota.values import format_percent

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GIB),
        ("4Gi", 4 * GIB),
        ("4g", 4 * GIB),
        ("4gib", 4 * GIB),
        (" 4 GiB\n", 4 * GIB),
        ("512MiB", 512 << 20),
        ("512m", 512 << 20),
        ("1.5GiB", 3 * GIB // 2),
        ("0.1MiB", None),
        ("2TiB", 2 << 40),
        ("1k", 1024),
        ("4096B", 4096),
        ("4096b", 4096),
    ],
)
def test_units_are_binary(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(BadValue, match=r"is not a whole number of bytes; write e\.g\. 104857B"):
            parse_size(text)
    else:
        assert parse_size(text) == size


REFUSED = """
4G => is ambiguous: 4 GiB = 4294967296 bytes, or 4000000000 bytes; write 4GiB or 4000000000B
4GB => is ambiguous: 4 GiB = 4294967296 bytes, or 4000000000 bytes; write 4GiB or 4000000000B
512M => is ambiguous: 512 MiB = 536870912 bytes, or 512000000 bytes; write 512MiB or 512000000B
3.7GiB => is not a whole number of bytes; write e.g. 3788MiB
0 => must be greater than zero; write e.g. 4GiB, or omit the key to request no GPU
4 => has no unit: 4 bytes or 4 GiB; write 4GiB, or 4B for bytes
4Q => is not a size; write e.g. 4GiB
 => is not a size; write e.g. 4GiB
-4GiB => is not a size; write e.g. 4GiB
4GiBB => is not a size; write e.g. 4GiB
4e9 => is not a size; write e.g. 4GiB
٤GiB => is not a size; write e.g. 4GiB
0GiB => must be greater than zero; write e.g. 4GiB, or omit the key to request no GPU
99999999999999999999GiB => exceeds the memory of any card; write e.g. 4GiB
"""


@pytest.mark.parametrize("row", REFUSED.replace("\n    ", " ").strip().splitlines())
def test_an_ambiguous_or_invalid_size_is_refused(row: str) -> None:
    text, message = row.split(" => ")
    with pytest.raises(BadValue) as caught:
        parse_size(text)
    assert str(caught.value) == message


@given(st.integers(min_value=1, max_value=MAX_BYTES))
def test_an_exact_size_reads_as_the_same_bytes(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (140 * GIB + GIB // 2, "140 GiB"),
        (12 * GIB, "12 GiB"),
        (GIB + GIB // 8, "1.1 GiB"),
        (4 * GIB, "4 GiB"),
        (512 << 20, "512 MiB"),
        (GIB - 1, "1023 MiB"),
        (1000, "1000 B"),
        (0, "0 B"),
    ],
)
def test_sizes_in_tables_are_rounded_down(size: int, shown: str) -> None:
    assert format_size(size) == shown


def test_use_is_shown_in_the_unit_of_the_quota() -> None:
    assert format_use(4 * GIB - 1, 4 * GIB) == "3.9/4.0 GiB"
    assert format_use(0, 8 * GIB) == "0.0/8.0 GiB"
    assert format_use(100 << 20, 512 << 20) == "100.0/512.0 MiB"


read_percent = KEYS["memory-percent"].parse


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
    found = read_percent(text)
    assert found == percent
    assert isinstance(found, (int, Fraction))
    assert format_percent(found) == shown


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "0/3", "1/0", "100.01", "301/3", "-1", "1e1", "x"]
)
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="not a percentage of a card's memory") as refusal:
        read_percent(text)
    assert refusal.value.fix == "write a number up to 100, e.g. 25, 12.5 or 100/3"


@given(st.fractions(Fraction(1, 10**9), 100, max_denominator=10**9))
def test_each_ratio_is_read_back(percent: Fraction) -> None:
    assert read_percent(str(percent)) == percent
