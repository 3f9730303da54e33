# SPDX-License-Identifier: Apache-2.0
"""What was sampled is read back: minimum, maximum and sum, whatever becomes of the samples."""

from __future__ import annotations

import os
import pwd
import random
from pathlib import Path
from typing import Any

import pytest

from gpushare.history.intervals import intervals
from gpushare.history.reader import ContainerSubject, HistoryReader, HistoryUnreadable
from gpushare.history.store import HistoryStore
from gpushare.history.tables import FILE
from gpushare.metrics_schema import Metrics
from tests.unit.exporter import made

HOUR, DAY = 3600, 86400
T0 = 1_800_000_000  # begins a period of five minutes
KEY = "0123456789abcdef"


def metrics(*tenants: Any, cards: Any = None, **node: Any) -> Metrics:
    found = [made.card()] if cards is None else cards
    return Metrics(cards=found, tenants=list(tenants), node=made.node(started=T0 - DAY, **node))


def container(key: str = KEY, created: float = T0 - 10, **part: Any) -> Any:
    figures = {"gpu_seconds": 0.0, "throttled_ns": 0, **part}
    return made.tenant(f"team/{key}/main", key=key, created=created, cards=[made.part(**figures)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metrics-history"


def only(reader: HistoryReader, since: float = 0, until: float = 2 * T0) -> ContainerSubject:
    [found] = reader.containers(since, until)
    return found


def total(reader: HistoryReader, who: Any, *which: Any, **more: Any) -> float:
    """Return the integral of a gauge in unit-seconds, or the increase of a counter."""
    return sum(step.sum for step in reader.series(who, *which, **more))


def test_old_samples_keep_minimum_maximum_and_sum(folder: Path) -> None:
    chance, store = random.Random(7), HistoryStore(folder)
    used, seconds, values = {}, 0.0, []
    for at in range(0, 8 * HOUR, 10):
        seconds += chance.random() * 10
        used[at] = chance.randrange(1 << 36)
        values.append(seconds)
        store.write(T0 + at, metrics(container(used_bytes=used[at], gpu_seconds=seconds)))
    end = T0 + 8 * HOUR
    with HistoryReader(folder) as reader:
        who = only(reader)
        found = reader.series(who, "used_bytes", T0, end, 300)
        assert len(found) == 96
        for step in found:
            inside = [used[int(step.start - T0) + at] for at in range(0, 300, 10)]
            assert (step.least, step.most, step.sampled) == (min(inside), max(inside), 300)
            assert step.mean == pytest.approx(sum(inside) / 30, rel=1e-9)
        # The last hours in steps of ten seconds, those before in steps of five minutes.
        assert {step.seconds for step in reader.series(who, "used_bytes", T0, T0 + HOUR)} == {300}
        assert {step.seconds for step in reader.series(who, "used_bytes", end - HOUR, end)} == {10}
        assert total(reader, who, "used_bytes", T0, end) == pytest.approx(
            10 * sum(used.values()), rel=1e-9
        )
        assert total(reader, who, "gpu_seconds", T0, end) == pytest.approx(seconds, rel=1e-9)
        hours = [
            total(reader, who, "gpu_seconds", T0 + n * HOUR, T0 + (n + 1) * HOUR) for n in range(8)
        ]
        assert sum(hours) == pytest.approx(seconds, rel=1e-9)
        # All at once, as reports read it; also where the range begins and ends within a period.
        for first, last in ((T0, end), (end - 5 * HOUR - 130, end - 1510), (end - 40, end - 10)):
            read = [one for _, one in intervals(reader, "container", first, last)]
            assert sum(one.increases["gpu_seconds"] for one in read) == pytest.approx(
                total(reader, who, "gpu_seconds", first, last), rel=1e-9
            )
            assert sum(one.gauges["used_bytes"].integral for one in read) == pytest.approx(
                total(reader, who, "used_bytes", first, last), rel=1e-9
            )
            assert [one.step for one in read] == sorted(one.step for one in read)
        more = values[-2] - values[-5]
        assert total(reader, who, "gpu_seconds", end - 40, end - 10) == pytest.approx(
            more, rel=1e-6
        )


def test_a_range_without_an_end_reads_what_there_is(folder: Path) -> None:
    store = HistoryStore(folder)
    store.write(T0, metrics(container()))
    assert len(whole(folder, 0, 9e18)) == 1  # where there are no periods yet
    for at in range(T0 + 60, T0 + 9 * HOUR, 60):  # six hours of them are samples still
        store.write(at, metrics(container(used_bytes=at - T0)))
    found = whole(folder, T0 - DAY, T0 + DAY)
    assert len(found) > 300
    assert whole(folder, 0, 9e18) == whole(folder, -9e18, 1e300) == found


def whole(folder: Path, since: float, until: float) -> list[Any]:
    with HistoryReader(folder) as reader:
        return list(intervals(reader, "container", since, until))


def test_reading_ends_when_nobody_waits_for_it(folder: Path) -> None:
    store = HistoryStore(folder)
    for at in range(T0, T0 + 2 * HOUR, 60):
        store.write(at, metrics(container()))
    store.close()
    asked = iter([True] * 5)
    with (
        HistoryReader(folder, lambda: next(asked, False)) as reader,
        pytest.raises(HistoryUnreadable, match="Choose a shorter range"),
    ):
        list(intervals(reader, "container", T0, T0 + HOUR))


def test_what_was_counted_before_the_history_began_is_none_of_it(folder: Path) -> None:
    store = HistoryStore(folder)
    old = container(created=T0 - 5000, gpu_seconds=1000.0)
    store.write(T0, metrics(old))
    new = container("f" * 16, created=T0 + 3, gpu_seconds=2.0, used_bytes=100)
    old["cards"][0]["gpu_seconds"] = 1004.0
    store.write(T0 + 10, metrics(old, new))
    with HistoryReader(folder) as reader:
        first, second = reader.containers(0, 2 * T0)
        assert total(reader, first, "gpu_seconds", 0, 2 * T0) == 4
        assert total(reader, second, "gpu_seconds", 0, 2 * T0) == 2
        # It was there for seven of the ten seconds.
        assert total(reader, second, "used_bytes", 0, 2 * T0) == 700


def test_who_a_container_is(folder: Path) -> None:
    store = HistoryStore(folder)
    pod = {"namespace": "team", "name": "train-0", "uid": "0a", "container": "main"}
    tenant = made.tenant(pod=pod, uid=os.getuid(), labels={"team": "vision"}, created=T0 - 10)
    tenant["cards"] = [made.part(0, gpu_seconds=0.0), made.part(1, used_bytes=1, gpu_seconds=0.0)]
    store.write(T0, metrics(tenant, cards=[made.card(0), made.card(1)]))
    tenant["policy"] = "burst-share"  # an operator changes it
    store.write(T0 + 10, metrics(tenant, cards=[made.card(0), made.card(1)]))
    with HistoryReader(folder) as reader:
        who = only(reader)
        assert (who.key, who.name, who.pod) == (KEY, "team/train-0/main", "train-0")
        assert (who.namespace, who.user) == ("team", pwd.getpwuid(os.getuid()).pw_name)
        assert (who.labels, who.engine) == ({"team": "vision"}, "containerd")
        assert (who.mode, who.policy, who.first, who.last) == ("shared", "burst-share", T0, T0 + 10)
        uuids = [card.uuid for card in reader.cards(0, 2 * T0)]
        assert sorted(who.cards) == uuids
        assert total(reader, who, "used_bytes", T0, T0 + 20) == 20 * (3 * made.GIB + 1)
        assert total(reader, who, "used_bytes", T0, T0 + 20, card=uuids[1]) == 20
        [step] = reader.series(who, "used_bytes", T0, T0 + 20, 60)
        assert step.most == 3 * made.GIB + 1
        assert not reader.containers(0, T0 - 20)
        assert not reader.containers(T0 + 60, 2 * T0)


def test_a_name_that_is_no_text_is_kept_as_its_codes(folder: Path) -> None:
    store = HistoryStore(folder)
    odd = {**container(), "name": "a\ud800", "engine": "\udcff", "policy": "\udc80"}
    store.write(T0, metrics(odd, cards=[{**made.card(), "model": "H\udc80"}]))
    with HistoryReader(folder) as reader:
        found = only(reader)
        assert (found.name, found.engine, found.policy) == ("a\\ud800", "\\udcff", "\\udc80")
        assert [card.model for card in reader.cards(T0, T0 + 1)] == ["H\\udc80"]


def test_the_figures_of_a_card(folder: Path) -> None:
    store = HistoryStore(folder)
    store.write(T0, metrics())
    store.write(T0 + 10, metrics(cards=[made.card(xids={"79": 3}, utilization=None)]))
    with HistoryReader(folder) as reader:
        [card] = reader.cards(0, 2 * T0)
        assert (card.uuid, card.model, card.memory_bytes) == (made.UUID, "H200", 140 * made.GIB)
        assert total(reader, card, "xids", 0, 2 * T0) == 2
        assert total(reader, card, "power", 0, 2 * T0) == 20 * 250.5
        assert len(reader.series(card, "utilization", 0, 2 * T0)) == 1
        with pytest.raises(ValueError, match="'memory' is not one of utilization"):
            total(reader, card, "memory", 0, 2 * T0)


def ended(at: float, key: str = KEY, created: float = T0 - 10, **part: Any) -> Any:
    return {**container(key, created, **part), "ended": T0 + at}


def with_ended(*rows: Any, tenants: Any = ()) -> Metrics:
    found = metrics(*tenants)
    found.ended.extend(rows)
    return found


def test_a_container_of_three_seconds_between_two_samples_is_counted_once(folder: Path) -> None:
    store = HistoryStore(folder)
    short = ended(5.5, created=T0 + 2.5, gpu_seconds=1.25, used_bytes=100, quota_bytes=400)
    store.write(T0, metrics())
    for at in (10, 20, 30):  # it is in several answers
        store.write(T0 + at, with_ended(short))
        store.close()  # and the history is written by several processes
        store = HistoryStore(folder)
    with HistoryReader(folder) as reader:
        who = only(reader)
        assert (who.first, who.last) == (T0 + 5.5, T0 + 5.5)
        assert total(reader, who, "gpu_seconds", T0, T0 + 60) == 1.25
        assert total(reader, who, "used_bytes", T0, T0 + 60) == 300
        assert total(reader, who, "quota_bytes", T0, T0 + 60) == 1200
        [bucket] = reader.series(who, "used_bytes", T0, T0 + 60)
        assert (bucket.start, bucket.seconds) == (T0 + 2.5, 3)
        assert len(list(intervals(reader, "container", T0, T0 + 60))) == 1


def test_the_end_of_a_container_is_its_last_sample(folder: Path) -> None:
    store = HistoryStore(folder)
    user = {"uid": os.getuid()}
    running = {**container(gpu_seconds=2.0, throttled_ns=500_000_000, used_bytes=100), **user}
    last = ended(7, gpu_seconds=5.0, throttled_ns=750_000_000, used_bytes=300)
    store.write(T0, metrics(running))
    # It was released while gpushared answered: its row is a moment older than its end.
    store.write(T0 + 10, with_ended(last, tenants=[running]))
    store.write(T0 + 20, with_ended(last))
    for at in range(30, 700, 10):  # and becomes a part of five minutes
        store.write(T0 + at, metrics())
    with HistoryReader(folder) as reader:
        who = only(reader)
        assert (who.last, who.user) == (T0 + 7, pwd.getpwuid(os.getuid()).pw_name)
        assert total(reader, who, "gpu_seconds", T0, T0 + 700) == 5.0
        assert total(reader, who, "throttled_seconds", T0, T0 + 700) == 0.75
        assert total(reader, who, "used_bytes", T0, T0 + 700) == 10 * 100 + 7 * 300
        read = [one for _, one in intervals(reader, "container", T0, T0 + 700)]
        assert sum(one.increases["gpu_seconds"] for one in read) == 5.0


@pytest.mark.thorough
def test_what_would_be_larger_loses_its_oldest_part_and_says_so(folder: Path) -> None:
    chance, most, number = random.Random(3), 3_000_000, 0  # 2 MiB of it for the log
    store = HistoryStore(folder, most_bytes=most)

    def write() -> None:
        busy = [
            container(f"{one:016x}", used_bytes=chance.randrange(1 << 36), gpu_seconds=number / 2)
            for one in range(10)
        ]
        card = made.card(used_bytes=chance.randrange(1 << 36))
        store.write(T0 + 10 * number, metrics(*busy, cards=[card]))

    while not store.notice:
        write()
        number += 1
    write()
    assert "than metrics_history.max_size" in store.notice
    assert "of 7 days" in store.notice
    store.close()
    assert (folder / FILE).stat().st_size < most
    with HistoryReader(folder) as reader:
        [card] = reader.cards(0, 2 * T0)
        steps = reader.series(card, "used_bytes", 0, 2 * T0)
        assert T0 < steps[0].start < steps[-1].start + steps[-1].seconds == T0 + 10 * number
