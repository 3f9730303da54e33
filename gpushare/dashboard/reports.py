# SPDX-License-Identifier: Apache-2.0
"""The reports of `gpushare report` on a page, of the containers that the filters let pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from gpushare.dashboard.problems import mode_of
from gpushare.history.reports import LABELS, REPORTS, ReportSource, make_report
from gpushare.history.reports.columns import TEXT
from gpushare.history.reports.formats import FORMATS, total_cells

if TYPE_CHECKING:
    from gpushare.history.reader import CardSubject, ContainerSubject
    from gpushare.history.reports.columns import ReportTable
    from gpushare.protocol import HistoryEvent

__all__ = ["FILTERS", "FORMATS", "MEDIA", "REPORTS", "make_report"]

FILTERS: Final = ("card", "mode", "namespace", "pod", "container")
#: Media types of the formats.
MEDIA: Final = {
    "csv": "text/csv",
    "json": "application/json",
}


@dataclass(frozen=True)
class ReportFilter:
    """The filter of a report's containers; empty: anything. `container` is a part of its name."""

    card: str = ""
    mode: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""

    @property
    def is_set(self) -> bool:
        """Whether it lets anything less than all pass."""
        return self != ReportFilter()

    def passes(self, one: ContainerSubject) -> bool:
        """Whether a container is in the report."""
        mode = mode_of(mode=one.mode, uuid=one.cards[0] if one.cards else "")
        return (
            (not self.card or self.card in one.cards)
            and self.mode in {"", mode}
            and self.namespace in {"", one.namespace}
            and self.pod in {"", one.pod}
            and self.container in (one.name or one.id)
        )


@dataclass(frozen=True)
class FilteredSource(ReportSource):
    """The history of the containers that pass the filter, on the cards that pass it."""

    filter: ReportFilter = field(default_factory=ReportFilter)

    @cached_property
    def cards(self) -> Mapping[str, CardSubject]:
        """The cards of the period, by UUID."""
        wanted = self.filter.card
        found = super().cards
        return {uuid: card for uuid, card in found.items() if wanted in {"", uuid}}

    @cached_property
    def containers(self) -> Mapping[str, ContainerSubject]:
        """The containers of the period, by key."""
        return {key: one for key, one in super().containers.items() if self.filter.passes(one)}

    def has(self, event: HistoryEvent) -> bool:
        """Whether an event is of a container, or of a card, that passes."""
        if event["key"]:
            return not self.filter.is_set or event["key"] in self.containers
        return event["card"] in self.cards if self.filter.card else not self.filter.is_set

    @cached_property
    def subjects(self) -> Mapping[int, tuple[ContainerSubject, str]]:
        """The container and the card's UUID of each number in the history."""
        return {
            number: found
            for number, found in super().subjects.items()
            if self.filter.card in {"", found[1]}
        }


def catalogue() -> dict[str, Any]:
    """Return the reports, and what rows can be grouped by."""
    return {
        "reports": [
            {"name": name, "title": one.title, "summary": one.summary, "by": one.by}
            for name, one in REPORTS.items()
        ],
        "labels": LABELS,
        "formats": list(MEDIA),
    }


def page(table: ReportTable) -> dict[str, Any]:
    """Return a report as the page shows it: the texts of all cells."""
    return {
        "title": table.title,
        "summary": table.summary,
        "headings": [
            {"text": one.heading, "meaning": one.meaning, "is_number": one.unit != TEXT}
            for one in table.columns
        ],
        "rows": [table.cells(row) for row in table.rows],
        "total": total_cells(table) if table.total else [],
        "notes": list(table.notes),
    }
