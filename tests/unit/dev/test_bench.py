# SPDX-License-Identifier: Apache-2.0
"""What `./dev bench` prints beside a difference."""

from __future__ import annotations

import pytest

from tools.bench.result import median_interval


@pytest.mark.parametrize(
    ("count", "interval"),
    # The ranks that tables of the sign test give, counted from 0.
    [(5, None), (6, (0, 5)), (10, (1, 8)), (30, (9, 20)), (100, (39, 60))],
)
def test_the_interval_of_a_median(count: int, interval: tuple[int, int] | None) -> None:
    assert median_interval(range(count)[::-1]) == interval
