# SPDX-License-Identifier: Apache-2.0
"""What is charged although another tenant had it, and what is not charged although it was had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy.compute import charge_corrections


def test_a_bypassing_tenant_owes_the_time_charged_to_others() -> None:
    found = charge_corrections({"attacker": (49.5, 0), "victim": (36, 60)})
    assert found == {"attacker": 49.5, "victim": -24}


def test_copies_that_the_driver_does_not_measure_are_not_compensated() -> None:
    assert charge_corrections({"copies": (0, 30), "kernels": (60, 60)}) == {}


def test_no_more_is_compensated_than_is_owed() -> None:
    found = charge_corrections({"a": (20, 10), "b": (10, 40), "c": (10, 20)})
    assert found == {"a": 10, "b": pytest.approx(-7.5), "c": pytest.approx(-2.5)}


@given(st.dictionaries(st.text(max_size=2), st.tuples(st.floats(0, 100), st.floats(0, 100))))
def test_all_compensation_was_owed(figures: dict[str, tuple[float, float]]) -> None:
    found = charge_corrections(figures)
    owed = sum(percent for percent in found.values() if percent > 0)
    assert -sum(percent for percent in found.values() if percent < 0) <= owed + 1e-6
