# SPDX-License-Identifier: Apache-2.0
"""The source of reports: the figures of a period, its events and the prices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpushare.history.intervals import Interval, intervals
from gpushare.history.reports.holding import Holding
from gpushare.prices import Prices

if TYPE_CHECKING:
    from gpushare.history.reader import CardSubject, ContainerSubject, HistoryReader
    from gpushare.protocol import HistoryEvent

    #: The events of these names in the period, oldest first.
    ReadEvents = Callable[[Collection[str]], Sequence[HistoryEvent]]

#: What rows can be grouped by, besides `label:KEY`.
LABELS: Final = (
    "container",
    "card",
    "namespace",
    "pod",
    "user",
    "mode",
    "policy",
    "engine",
    "node",
)
LABEL_PREFIX: Final = "label:"


@dataclass(frozen=True)
class ReportSource:
    """The history from `since` to `until`.

    `below` is the part of a request below which it is wasted, and `least_seconds` how long a
    container must waste it, or be idle, to be reported.
    """

    reader: HistoryReader
    since: float
    until: float
    read_events: ReadEvents
    prices: Prices = field(default_factory=Prices)
    below: float = 0.3
    least_seconds: float = 3600.0

    @cached_property
    def cards(self) -> Mapping[str, CardSubject]:
        """The cards of the period, by UUID."""
        return {card.uuid: card for card in self.reader.cards(self.since, self.until)}

    @cached_property
    def containers(self) -> Mapping[str, ContainerSubject]:
        """The containers of the period, by key."""
        return {one.key: one for one in self.reader.containers(self.since, self.until)}

    @cached_property
    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The values by which a container's rows can be grouped, without its card; by key."""
        names = Counter(one.name or one.id[:12] for one in self.containers.values())
        return {key: _labels(one, names) for key, one in self.containers.items()}

    @cached_property
    def subjects(self) -> Mapping[int, tuple[ContainerSubject, str]]:
        """The container and the card's UUID of each number in the history."""
        return {
            number: (one, uuid)
            for one in self.containers.values()
            for number, uuid in zip(one.subjects, one.cards, strict=True)
        }

    @cached_property
    def holdings(self) -> Sequence[Holding]:
        """Each container's part of each of its cards."""
        found: dict[int, Holding] = {}
        for number, interval in self.container_intervals():
            holding = found.get(number)
            if holding is None:
                holding = found[number] = self._holding(number)
            holding.add(interval)
        return list(found.values())

    @cached_property
    def end(self) -> float:
        """The last time in the period at which anything was seen."""
        return min(self.until, max((one.last for one in self.cards.values()), default=self.since))

    @cached_property
    def sampled_seconds(self) -> float:
        """For how long there are figures of a card."""
        totals: dict[str, float] = defaultdict(float)
        for card, interval in self.card_intervals():
            totals[card.uuid] += interval.seconds
        return max(totals.values(), default=0.0)

    def container_intervals(self) -> Iterator[tuple[int, Interval]]:
        """Yield the figures of all containers by time, each with the number of the subject."""
        for number, interval in intervals(self.reader, "container", self.since, self.until):
            if number in self.subjects:
                yield number, interval

    def card_intervals(self) -> Iterator[tuple[CardSubject, Interval]]:
        """Yield the figures of all cards by time."""
        cards = {card.subject: card for card in self.cards.values()}
        for number, interval in intervals(self.reader, "card", self.since, self.until):
            if number in cards:
                yield cards[number], interval

    def card_name(self, uuid: str) -> str:
        """Return the name of a card, or its UUID if it is not known."""
        card = self.cards.get(uuid)
        return uuid if card is None else card.name

    def labels_on(self, key: str, uuid: str) -> dict[str, str]:
        """Return what the rows of a container on a card can be grouped by."""
        return {**self.labels.get(key, {}), "card": self.card_name(uuid)}

    def _holding(self, number: int) -> Holding:
        container, uuid = self.subjects[number]
        card = self.cards.get(uuid)
        return Holding(
            labels=self.labels_on(container.key, uuid),
            key=container.key,
            model="" if card is None else card.model,
            is_exclusive=container.mode == "exclusive",
            below=self.below,
            peak_bytes=0.0 if container.first >= self.since else None,
        )


def _labels(one: ContainerSubject, names: Counter[str]) -> dict[str, str]:
    name = one.name or one.id[:12]
    return {
        "container": name if names[name] == 1 else f"{name} ({one.id[:12]})",
        "namespace": one.namespace,
        "pod": f"{one.namespace}/{one.pod}" if one.pod else "",
        "user": one.user,
        "mode": one.mode,
        "policy": one.policy,
        "engine": one.engine,
        "node": "all",
        **{f"{LABEL_PREFIX}{key}": value for key, value in one.labels.items()},
    }
