# SPDX-License-Identifier: Apache-2.0
"""A kernel launch while the gate is open."""

from __future__ import annotations

from collections.abc import Iterator

from .result import Result
from .tenant import tenant


def measure() -> Iterator[Result]:
    """Launch through the filter and past it."""
    with tenant() as made:
        yield made.result("launch, gate open", "launch", rounds=400, budget=3)
