# SPDX-License-Identifier: Apache-2.0
"""The history stays as small as it is said to be; docs/measurements has the whole of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpushare.history.reader import HistoryReader
from gpushare.history.store import MOST_BYTES, HistoryStore, most_bytes_of
from gpushare.history.tables import FILE
from gpushare.metrics_schema import Metrics
from gpushare.protocol.rows import TenantRow
from tests.unit.exporter import made

from .test_store import DAY, T0, folder

__all__ = ["folder"]  # a fixture

CONTAINERS, CARDS = 200, 16  # of which the limit is
SHORT = 10_000  # a day
LOG_BYTES = 2 << 20  # of the limit
PAGES_BYTES = 100_000  # one for each table and index, half full each


class BusyNode:
    """A part of the containers and cards of a large node, whose figures change all the time."""

    def __init__(self, part: float) -> None:
        self._chance = random.Random(3)
        self.cards = [made.card(number) for number in range(max(1, round(part * CARDS)))]
        self._lasting = [self._container(number) for number in range(round(part * CONTAINERS))]
        self._short: list[float] = []  # when each of those that run has begun
        self._every = DAY / SHORT / part
        self._next = 0.0
        self._number = 1000

    def _container(self, number: int, created: float = T0 - 10) -> TenantRow:
        pod = {"namespace": "team", "name": f"job-{number}", "uid": "0", "container": "main"}
        part = made.part(uuid=self.cards[number % len(self.cards)]["uuid"], gpu_seconds=0.0)
        about = {"key": f"{number:016x}", "id": f"{number:064x}", "pod": pod, "cards": [part]}
        return made.tenant(f"team/job-{number}/main", created=created, **about)

    def sample(self, at: float) -> Metrics:
        """Return the figures of the next ten seconds; those that run one minute are the last."""
        while self._next <= at - T0:
            self._next += self._every
            self._lasting.append(self._container(self._number, at - 5))
            self._number += 1
        self._lasting = [one for one in self._lasting if at - one["created"] < 60 or _lasts(one)]
        for tenant in self._lasting:
            figures = tenant["cards"][0]
            figures["used_bytes"] = self._chance.randrange(4 * made.GIB)
            figures["utilization"] = 100 * self._chance.random()
            figures["gpu_seconds"] += 10 * self._chance.random()
            figures["compute"]["throttled_ns"] += self._chance.randrange(10**9)
        for card in self.cards:
            card["utilization"] = self._chance.randrange(101)
            card["used_bytes"] = self._chance.randrange(140 * made.GIB)
            card["sensors"]["power_milliwatts"] = self._chance.randrange(700_000)
            card["sensors"]["sm_clock_mhz"] = self._chance.randrange(1980)
        return Metrics(cards=self.cards, tenants=self._lasting, node=made.node(started=T0 - DAY))


def _lasts(tenant: TenantRow) -> bool:
    return int(tenant["key"], 16) < 1000


@pytest.mark.thorough
def test_a_day_takes_its_part_of_the_limit(folder: Path) -> None:
    part, days = 0.05, 1
    crowd, store = BusyNode(part), HistoryStore(folder, days=days)
    sizes = []
    for number in range(int(1.25 * DAY / 10)):
        store.write(T0 + 10 * number, crowd.sample(T0 + 10 * number))
        if number % 360 == 0:
            sizes.append((folder / FILE).stat().st_size)
    store.close()
    sizes.append((folder / FILE).stat().st_size)
    assert sizes[-1] < part * (most_bytes_of(days) - LOG_BYTES) + PAGES_BYTES
    assert sizes[-1] < 1.1 * sizes[25]  # what is too old makes room for what is new
    assert not store.notice
    with HistoryReader(folder) as reader:
        short = [one for one in reader.containers(0, 2 * T0) if int(one.key, 16) >= 1000]
        assert 0.8 * part * SHORT < len(short) < 1.3 * part * SHORT
        since = min(
            step.start
            for card in reader.cards(0, 2 * T0)
            for step in reader.series(card, "power", 0, 2 * T0)
        )
        assert T0 + 0.2 * DAY < since < T0 + 0.3 * DAY


def test_the_limit_grows_with_the_days() -> None:
    assert most_bytes_of(7) == MOST_BYTES == 200_000_000
    assert most_bytes_of(90) == 200_000_000 * 90 // 7
    assert most_bytes_of(1) == 200_000_000 // 7


@pytest.mark.thorough
def test_what_would_be_larger_loses_its_oldest_part_and_says_so(folder: Path) -> None:
    crowd, most = BusyNode(0.05), 5_000_000
    store = HistoryStore(folder, most_bytes=most)
    number = 0
    while not store.notice:
        store.write(T0 + 10 * number, crowd.sample(T0 + 10 * number))
        number += 1
    store.write(T0 + 10 * number, crowd.sample(T0 + 10 * number))
    assert "than metrics_history.max_size" in store.notice
    assert "of 7 days" in store.notice
    store.close()
    assert (folder / FILE).stat().st_size < most
    with HistoryReader(folder) as reader:
        [card] = reader.cards(0, 2 * T0)
        steps = reader.series(card, "power", 0, 2 * T0)
        assert T0 < steps[0].start < steps[-1].start + steps[-1].seconds == T0 + 10 * number
