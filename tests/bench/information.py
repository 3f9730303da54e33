# SPDX-License-Identifier: Apache-2.0
"""cuMemGetInfo, which shows the tenant's slice."""

from __future__ import annotations

from collections.abc import Iterator

from .result import Result
from .tenant import tenant


def measure() -> Iterator[Result]:
    """Ask how much memory is free."""
    with tenant() as made:
        yield made.result("cuMemGetInfo", "information", rounds=2000, budget=50, absolute=True)
