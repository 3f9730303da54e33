# SPDX-License-Identifier: Apache-2.0
"""Property tests are the same in every run, judge no time, and leave nothing in the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import configuration
from hypothesis import strategies as st


def load_profile() -> None:
    """Have hypothesis choose the same examples in every run."""
    configuration.set_hypothesis_home_dir(Path(__file__).parents[1] / "build/cache/hypothesis")
    hypothesis.settings.register_profile(
        "gpushare", database=None, deadline=None, derandomize=True, max_examples=50
    )
    hypothesis.settings.load_profile("gpushare")


def any_text(max_size: int | None = None) -> st.SearchStrategy[str]:
    """Return texts that also have halves of surrogate pairs, which hypothesis leaves out."""
    halves = st.characters(categories=["Cs"])
    return st.text(st.one_of(st.characters(), halves), max_size=max_size)


def any_json(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return values that JSON can say, and objects of them with `names`."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | any_text(20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=9),
        max_leaves=20,
    )
