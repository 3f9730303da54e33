# SPDX-License-Identifier: Apache-2.0
"""Quantities are read as Kubernetes reads them, and written so that it reads the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubernetes.api.devices import BadQuantity, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("40", 40),
        ("20Gi", 20 << 30),
        ("139Gi", 139 << 30),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("500m", 1),
        ("1500m", 2),
        ("-1500m", -2),
        ("+1k", 1000),
        (".5Ki", 512),
        ("5.", 5),
        ("12e-1", 2),
    ],
)
def test_a_quantity_is_read(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "4 Gi", "4GiB", "1e", "0x10", "٣", "1..2", "--1", "4K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity, match="is not a quantity"):
        parse_quantity(text)


@given(st.integers(0, 1 << 62))
def test_an_amount_is_written_exactly(amount: int) -> None:
    assert parse_quantity(format_quantity(amount)) == amount


def test_the_largest_exact_unit_is_used() -> None:
    assert format_quantity(140 << 30) == "140Gi"
    assert format_quantity((140 << 30) + (1 << 20)) == "143361Mi"
    assert format_quantity(0) == "0"
