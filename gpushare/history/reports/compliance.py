# SPDX-License-Identifier: Apache-2.0
"""The report compliance: when containers were over their allocation, and what gpushared did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpushare.history.reports.columns import (
    BYTES,
    COUNT,
    SECONDS,
    TEXT,
    TIME,
    ReportColumn,
    ReportRecord,
)

if TYPE_CHECKING:
    from gpushare.history.reports.source import ReportSource
    from gpushare.protocol import HistoryEvent

COMPLIANCE: Final = (
    ReportColumn("time", "Since", TIME, "When gpushared noticed it."),
    ReportColumn(
        "container", "Container", TEXT, "The container, or the program without an allocation."
    ),
    ReportColumn("card", "Card", TEXT, "The card's index, or its UUID if it was exchanged."),
    ReportColumn(
        "kind",
        "Over",
        TEXT,
        "memory: above the quota, past the library. compute: work that bypasses the launch gate. "
        "unallocated: use of a card without an allocation.",
    ),
    ReportColumn("episodes", "Episodes", COUNT, "How often.", combine=sum, grouped_only=True),
    ReportColumn("used_bytes", "Used", BYTES, "The most memory that gpushared saw.", combine=max),
    ReportColumn("limit_bytes", "Limit", BYTES, "What the container may use."),
    ReportColumn(
        "seconds", "For", SECONDS, "How long, until it ended or the report does.", combine=sum
    ),
    ReportColumn("action", "Action", TEXT, "The strongest action of gpushared."),
    ReportColumn("end", "End", TEXT, "How it ended: cleared, killed, exited; empty: not yet."),
)

#: What each event says was done, weakest first; "" says that it is over.
_ACTIONS: Final = ("observed", "warned", "frozen", "killed")
_DONE: Final = {
    "over-quota-detected": ("memory", "observed"),
    "over-quota-warned": ("memory", "warned"),
    "over-quota-frozen": ("memory", "frozen"),
    "over-quota-killed": ("memory", "killed"),
    "gate-bypass-detected": ("compute", "warned"),
    "gate-bypass-frozen": ("compute", "frozen"),
    "unallocated-container-detected": ("unallocated", "warned"),
}
_CLEARED: Final = {
    "over-quota-thawed": "memory",
    "over-quota-cleared": "memory",
}
_EXITED: Final = "tenant-released"
COMPLIANCE_EVENTS: Final = (*_DONE, *_CLEARED, _EXITED)


@dataclass
class _Episode:
    """A time in which a container was over; `end` is empty until it is over."""

    key: str
    name: str
    card: str
    kind: str
    since: float
    until: float
    end: str = ""
    used_bytes: int | None = None
    limit_bytes: int | None = None
    actions: set[str] = field(default_factory=set)

    def note(self, event: HistoryEvent, action: str) -> None:
        fields = event["fields"]
        self.actions.add(action)
        self.name = event["name"] or self.name
        used = fields.get("used_bytes")
        if isinstance(used, int):
            self.used_bytes = max(self.used_bytes or 0, used)
        self.limit_bytes = fields.get("limit_bytes", self.limit_bytes)
        if action == "killed":
            self.end, self.until = "killed", event["time"]


def compliance(source: ReportSource) -> Iterable[ReportRecord]:
    """Yield each time that a container was over its allocation."""
    for one in _episodes(source):
        labels = source.labels_on(one.key, one.card) if one.card else source.labels.get(one.key, {})
        name = labels.get("container") or one.name
        yield ReportRecord(
            {**labels, "container": name, "node": "all"},
            {
                "time": one.since,
                "container": name,
                "card": labels.get("card"),
                "kind": one.kind,
                "episodes": 1,
                "used_bytes": one.used_bytes,
                "limit_bytes": one.limit_bytes,
                "seconds": one.until - one.since,
                "action": max(one.actions, key=_ACTIONS.index),
                "end": one.end or None,
            },
        )


def _episodes(source: ReportSource) -> list[_Episode]:
    made: list[_Episode] = []
    current: dict[str, dict[tuple[str, str], _Episode]] = {}  # by container or program
    for event in source.read_events(COMPLIANCE_EVENTS):
        name, key = event["event"], event["key"]
        if name in _DONE:
            kind, action = _DONE[name]
            place = (event["card"] if kind == "memory" else "", kind)
            of_owner = current.setdefault(key or _program(event), {})
            episode = of_owner.get(place)
            if episode is None or (episode.end and action != "killed"):
                episode = _Episode(
                    key, _program(event), event["card"], kind, event["time"], source.end
                )
                of_owner[place] = episode
                made.append(episode)
            episode.note(event, action)
            continue
        for (card, kind), episode in current.get(key, {}).items():
            over = name == _EXITED or (_CLEARED[name] == kind and card in {"", event["card"]})
            if over and not episode.end:
                episode.end = "exited" if name == _EXITED else "cleared"
                episode.until = event["time"]
    for episode in made:  # a program without an allocation is reported once, and not when it ends
        if episode.kind == "unallocated" and not episode.end:
            episode.until = episode.since
        episode.until = max(episode.until, episode.since)
    return made


def _program(event: HistoryEvent) -> str:
    fields = event["fields"]
    return str(event["name"] or fields.get("container") or fields.get("program") or "")
