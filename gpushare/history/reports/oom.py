# SPDX-License-Identifier: Apache-2.0
"""The report oom: the memory before each refused allocation and each crash.

gpushared does not learn with which status a container exits. A crash is an exit within a minute
of a refusal, a kill because of memory, or an XID error of the card.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpushare.history.reader import ContainerSubject
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
    from gpushare.history.reader import Bucket, CardSubject
    from gpushare.history.reports.source import ReportSource

#: Refusals with less time between them are one incident.
_TOGETHER_SECONDS: Final = 300.0
_CRASH_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 10.0
_BEFORE: Final = (("10m", 600.0), ("5m", 300.0), ("1m", 60.0))
_LONGEST_SECONDS: Final = 1200.0  # the steps of ten minutes before begin earlier
_SHORTFALL, _KILLED, _XID, _EXITED = OOM_EVENTS = (
    "memory-shortfall-reported",
    "over-quota-killed",
    "card-xid-reported",
    "tenant-released",
)

OOM: Final = (
    ReportColumn("time", "Time", TIME, "The first refusal, or the crash."),
    ReportColumn(
        "container", "Container", TEXT, "The container; of an XID error, those on the card."
    ),
    ReportColumn("card", "Card", TEXT, "The card's index, or its UUID if it was exchanged."),
    ReportColumn(
        "kind",
        "What",
        TEXT,
        "over quota: the quota denied allocations. card full: the driver could not allocate memory "
        "within the quota. killed: for memory above the quota. XID: an error of the card.",
    ),
    ReportColumn("refusals", "Refusals", COUNT, "Allocations that were refused.", combine=sum),
    ReportColumn("incidents", "Incidents", COUNT, "How often.", combine=sum, grouped_only=True),
    ReportColumn("used_10m_bytes", "10 min", BYTES, "Memory in use ten minutes before."),
    ReportColumn("used_5m_bytes", "5 min", BYTES, "Memory in use five minutes before."),
    ReportColumn("used_1m_bytes", "1 min", BYTES, "Memory in use one minute before."),
    ReportColumn(
        "used_now_bytes", "Then", BYTES, "The most memory in use at that time.", combine=max
    ),
    ReportColumn("quota_bytes", "Quota", BYTES, "The memory quota, or the memory of the card."),
    ReportColumn(
        "card_used_bytes", "Card used", BYTES, "Memory of the card in use.", optional=True
    ),
    ReportColumn(
        "exit_seconds", "Exit after", SECONDS, "Time until the container exited, within a minute."
    ),
)


@dataclass
class _Incident:
    key: str  # of the container; empty: of a card
    card: str
    kind: str
    first: float
    last: float
    refusals: float
    exit_seconds: float | None = None


def oom(source: ReportSource) -> Iterable[ReportRecord]:
    """Yield each refusal and crash, with the memory before it."""
    incidents = [*_denied(source), *_reported(source)]
    exits: dict[str, list[float]] = {}
    for event in source.read_events([_EXITED]):
        exits.setdefault(event["key"], []).append(event["time"])
    for incident in incidents:
        for exited in exits.get(incident.key, []) if incident.key else []:
            after = exited - incident.last
            # The refusals of a sample happened at some time in it.
            if -_CRASH_SECONDS <= after <= _CRASH_SECONDS:
                incident.exit_seconds = max(0.0, after)
    return [_record(source, one) for one in sorted(incidents, key=lambda one: one.first)]


def _denied(source: ReportSource) -> Iterator[_Incident]:
    """Yield the allocations that quotas denied, by the counters of the samples."""
    last: dict[str, _Incident] = {}
    for number, interval in source.container_intervals():
        count = interval.increases.get("denied", 0.0)
        if not count:
            continue
        container, uuid = source.subjects[number]
        incident = last.get(container.key)
        if incident is None or interval.start - incident.last > _TOGETHER_SECONDS:
            card = uuid if len(container.cards) == 1 else ""  # counted for all of its cards
            incident = _Incident(
                container.key, card, "over quota", interval.start, interval.end, 0.0
            )
            last[container.key] = incident
            yield incident
        incident.last = interval.end
        incident.refusals += count


def _reported(source: ReportSource) -> Iterator[_Incident]:
    """Yield the shortfalls, kills and XID errors of the events."""
    last: dict[tuple[str, str], _Incident] = {}
    for event in source.read_events([_SHORTFALL, _KILLED, _XID]):
        name, at, key, card = event["event"], event["time"], event["key"], event["card"]
        if name == _XID:
            text = f"XID {event['fields'].get('xid', '')}".strip()
            yield _Incident("", card, text, at, at, 0.0)
        elif name == _KILLED:
            yield _Incident(key, card, "killed", at, at, 0.0)
        else:
            incident = last.get((key, card))
            if incident is None or at - incident.last > _TOGETHER_SECONDS:
                incident = last[key, card] = _Incident(key, card, "card full", at, at, 0.0)
                yield incident
            incident.last = at
            incident.refusals += 1


def _record(source: ReportSource, incident: _Incident) -> ReportRecord:
    card = source.cards.get(incident.card)
    container = source.containers.get(incident.key)
    if incident.key:
        labels = dict(source.labels.get(incident.key, {}))
    else:
        labels = {"node": "all", "container": _on_card(source, incident)}
    if incident.card:
        labels["card"] = source.card_name(incident.card)
    used = _Memory(source, container or card, incident, "used_bytes")
    quota = _Memory(source, container, incident, "quota_bytes").now
    return ReportRecord(
        labels,
        {
            "time": incident.first,
            "container": labels.get("container") or incident.key,
            "card": labels.get("card"),
            "kind": incident.kind,
            "refusals": incident.refusals,
            "incidents": 1,
            **{f"used_{name}_bytes": used.before(seconds) for name, seconds in _BEFORE},
            "used_now_bytes": used.now,
            "quota_bytes": card.memory_bytes if card and not incident.key else quota,
            "card_used_bytes": _Memory(source, card, incident, "used_bytes").now,
            "exit_seconds": incident.exit_seconds,
        },
    )


def _on_card(source: ReportSource, incident: _Incident) -> str:
    """Return the names of the containers that had a card at the time of an incident."""
    return ", ".join(
        source.labels[one.key]["container"]
        for one in source.containers.values()
        if incident.card in one.cards and one.first <= incident.first <= one.last
    )


class _Memory:
    """A figure around an incident; of five minutes where no samples are kept, the most."""

    def __init__(
        self,
        source: ReportSource,
        subject: CardSubject | ContainerSubject | None,
        incident: _Incident,
        figure: str,
    ) -> None:
        self._incident = incident
        self._buckets: list[Bucket] = []
        if subject is not None:
            of_card = isinstance(subject, ContainerSubject) and incident.card in subject.cards
            card = incident.card if of_card else None
            begin, end = incident.first - _LONGEST_SECONDS, incident.last + _SAMPLE_SECONDS
            self._buckets = source.reader.series(subject, figure, begin, end, card=card)

    @property
    def now(self) -> float | None:
        """The most from the first to the last refusal."""
        return self._most(self._incident.first - _SAMPLE_SECONDS, self._incident.last)

    def before(self, seconds: float) -> float | None:
        """Return the most in the ten seconds that ended `seconds` before."""
        end = self._incident.first - seconds
        return self._most(end - _SAMPLE_SECONDS, end)

    def _most(self, begin: float, end: float) -> float | None:
        found = [
            one.most for one in self._buckets if one.start < end and one.start + one.seconds > begin
        ]
        return max(found, default=None)
