# SPDX-License-Identifier: Apache-2.0
"""One figure of a share scenario, held against its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A figure with gpushare, beside the same on the bare driver.

    Attributes:
        row: the scenario's name.
        title: of the scenario, with the slow motion it was measured in.
        what: was measured.
        unit: of `native`, `value` and `limit`.
        native: on the bare driver, in the same run; None where there is no such thing.
        value: with gpushare.
        limit: the target; None for a figure that has none.
        at_least: the target is the least that `value` may be, not the most.
    """

    row: str
    title: str
    what: str
    unit: str
    native: float | None
    value: float
    limit: float | None = None
    at_least: bool = False

    @property
    def name(self) -> str:
        """The figure's own name among all."""
        return f"{self.row}: {self.what}"

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def target(self) -> str:
        """The target as the page shows it."""
        if self.limit is None:
            return ""
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"

    def as_json(self) -> dict[str, Any]:
        """Return the object for build/bench.json."""
        return {
            "name": self.name,
            "title": self.title,
            "value": round(self.value, 4),
            "unit": self.unit,
            "baseline": None if self.native is None else round(self.native, 4),
            "target": self.target or None,
            "met": self.met,
        }
