# SPDX-License-Identifier: Apache-2.0
"""A node whose history is constructed: two cards, and containers that do as they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.history.reader import HistoryReader
from gpushare.history.reports import ReportSource
from gpushare.history.store import HistoryStore
from gpushare.metrics_schema import Metrics
from tests.unit.exporter import made

GIB = 1 << 30
HOUR = 3600.0
T0 = 1_800_000_000.0  # begins a period of five minutes
UUIDS = [made.card(index)["uuid"] for index in range(2)]


@dataclass
class Actor:
    """A container, and what it has of its cards at second `at` of the history; it counts.

    `does` returns the memory in GiB, the percent of a card that it receives, and refusals.
    """

    name: str
    does: Callable[[float], tuple[float, float, int]]
    cards: Sequence[int] = (0,)
    quota: float = 4.0
    cores: int = 50
    begin: float = 0.0
    end: float = float("inf")
    uid: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    isolation: str = "interposer"
    evicted: tuple[float, float] = (0.0, 0.0)  # from, until
    key: str = ""
    gpu_seconds: float = 0.0  # since gpushared started
    denied: int = 0
    #: What was ever received, and the memory in use and the quota over time: the truth.
    received: float = 0.0
    gib_seconds: float = 0.0
    quota_gib_seconds: float = 0.0

    def row(self, at: float, seconds: float) -> Any:
        """Return the container as gpushared has it at `at`, `seconds` after the last time."""
        gib, percent, refused = self.does(at)
        lasted = min(seconds, at - self.begin)
        self.gpu_seconds += lasted * percent / 100
        self.received += lasted * percent / 100 * len(self.cards)
        self.gib_seconds += lasted * gib * len(self.cards)
        self.quota_gib_seconds += lasted * self.quota * len(self.cards)
        self.denied += refused
        namespace, pod, _ = self.name.split("/") if "/" in self.name else ("", "", "")
        return made.tenant(
            self.name,
            key=self.key or self.name,
            id=(self.key or self.name).encode().hex().ljust(64, "0")[:64],
            isolation=self.isolation,
            eviction={"state": "evicted"} if self.evicted[0] < at <= self.evicted[1] else None,
            created=T0 + self.begin,
            denied_since_start=self.denied,
            uid=self.uid,
            labels=self.labels,
            pod={"namespace": namespace, "name": pod, "uid": "", "container": "main"}
            if pod
            else None,
            cards=[
                made.part(
                    card,
                    quota_bytes=int(self.quota * GIB),
                    used_bytes=int(gib * GIB),
                    peak_bytes=int(gib * GIB),
                    cores=self.cores,
                    utilization=percent,
                    gpu_seconds=self.gpu_seconds,
                    throttled_ns=0,
                )
                for card in self.cards
            ],
        )


def record(
    folder: Path,
    actors: Sequence[Actor],
    seconds: float,
    *,
    step: float = 10.0,
    restarts: Sequence[float] = (),
    gaps: Sequence[tuple[float, float]] = (),
) -> None:
    """Write `seconds` of a history; at each of `restarts`, gpushared begins to count again."""
    store, started, at = HistoryStore(folder), 0.0, 0.0
    while at <= seconds:
        if any(begin <= at < end for begin, end in gaps):
            at += step
            continue
        if any(started < one <= at for one in restarts):
            started = at
            for actor in actors:
                actor.gpu_seconds, actor.denied = 0.0, 0
        there = [one for one in actors if one.begin < at <= one.end]
        rows = [actor.row(at, step) for actor in there]
        cards = [card_of(card, [one for row in rows for one in row["cards"]]) for card in range(2)]
        store.write(T0 + at, Metrics(cards, rows, made.node(started=T0 + started - HOUR)))
        at += step
    store.close()


def card_of(index: int, parts: Sequence[Any]) -> Any:
    """Return a card with what `parts` of containers have of it."""
    here = [part for part in parts if part["index"] == index]
    return made.card(
        index,
        used_bytes=sum(part["used_bytes"] for part in here),
        allocated_bytes=sum(part["quota_bytes"] for part in here),
        utilization=min(100, sum(part["utilization"] for part in here)),
        tenants=len(here),
        model="H200" if index == 0 else "A100-80GB",
    )


@contextmanager
def read(
    folder: Path, since: float, until: float, events: Sequence[Any] = (), **more: Any
) -> Iterator[ReportSource]:
    """Read from second `since` to `until` of the history; `events` are (at, name, fields)."""
    found = [event(number, *one) for number, one in enumerate(events)]

    def read_events(names: Any) -> Any:
        return [one for one in found if one["event"] in names]

    with HistoryReader(folder) as reader:
        yield ReportSource(reader, T0 + since, T0 + until, read_events, **more)


def event(number: int, at: float, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    rest = dict(fields)
    return {
        "number": number,
        "time": T0 + at,
        "boot_id": "b",
        "generation": 1,
        "event": name,
        "level": "info",
        "key": rest.pop("tenant", ""),
        "id": "",
        "name": rest.pop("name", ""),
        "card": rest.pop("card", ""),
        "fields": rest,
    }
