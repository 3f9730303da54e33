# SPDX-License-Identifier: Apache-2.0
"""Property tests are the same in every run, judge no time, and leave nothing in the tree."""

from __future__ import annotations

from pathlib import Path

import hypothesis
from hypothesis import configuration


def load_profile() -> None:
    """Have hypothesis choose the same examples in every run."""
    configuration.set_hypothesis_home_dir(Path(__file__).parents[1] / "build/cache/hypothesis")
    hypothesis.settings.register_profile(
        "gpushare", database=None, deadline=None, derandomize=True, max_examples=50
    )
    hypothesis.settings.load_profile("gpushare")
