# SPDX-License-Identifier: Apache-2.0
"""Packed samples are unpacked as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.history.packed import pack, unpack

VALUES = st.none() | st.integers(-(1 << 63) + 1, (1 << 63) - 1)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1)))
def test_packed_rows_are_unpacked_as_columns(rows: list[tuple[int | None, ...]]) -> None:
    assert unpack(pack(rows)) == [list(column) for column in zip(*rows, strict=True)]
