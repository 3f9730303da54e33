# SPDX-License-Identifier: Apache-2.0
"""What a local user or a tenant can make grow: log lines, and the history of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.core.log import (
    attach_listener,
    detach_listener,
    log,
)
from gpushare.daemon.store import history as store
from gpushare.daemon.store.history import EventSubject, History
from gpushare.event_reader import EVENTS_FILE
from tests.unit.daemon.test_log_budget import KEY, OTHER


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are written."""
    written: list[bytes] = []
    monkeypatch.setattr("os.write", lambda _fd, line: written.append(line))
    return written


Open = Callable[..., History]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    made: list[History] = []

    def make(most_bytes: int) -> History:
        made.append(History(tmp_path, "boot-1", days=7.0, most_bytes=most_bytes))
        return made[-1]

    yield make
    for one in made:
        one.close(10)


def fill(history: History, event: str, count: int, **fields: Any) -> None:
    for number in range(count):
        history.note(time.time(), event, "info", {**fields, "text": "x" * 2000, "n": number})
        if number % 50 == 49:
            assert history.settle(30)
    assert history.settle(30)


def found(history: History) -> list[tuple[str, str]]:
    return [(row["event"], row["key"]) for row in history.page(EventSubject(), 0.0, 0, 100_000)]


def test_evidence_is_not_displaced_by_other_events(opened: Open) -> None:
    history = opened(1 << 20)
    fill(history, "over-quota-frozen", 3, tenant=KEY)
    fill(history, "tenant-reserved", 3, tenant=KEY)
    fill(history, "request-refused", 3000, uid=1000, op="open")
    kept = found(history)
    assert kept.count(("over-quota-frozen", KEY)) == 3
    assert kept.count(("tenant-reserved", KEY)) == 3  # nor are the ordinary events of others
    assert 0 < kept.count(("request-refused", "")) < 600


def test_a_tenant_that_causes_much_evidence_displaces_its_own(opened: Open) -> None:
    history = opened(1 << 20)
    fill(history, "over-quota-frozen", 3, tenant=KEY)
    fill(history, "tenant-reserved", 3, tenant=KEY)
    fill(history, "over-quota-cleared", 3000, tenant=OTHER)
    kept = found(history)
    assert kept.count(("over-quota-frozen", KEY)) == 3
    assert kept.count(("tenant-reserved", KEY)) == 3
    assert 0 < kept.count(("over-quota-cleared", OTHER)) < 600


def test_many_owners_of_a_few_events_each_still_fit(opened: Open, tmp_path: Path) -> None:
    history = opened(1 << 20)
    fill(history, "over-quota-frozen", 3, tenant=KEY)
    for number in range(2000):
        fields = {"tenant": f"{number:016x}", "text": "x" * 2000}
        history.note(time.time(), "tenant-released", "info", fields)
        if number % 50 == 49:
            assert history.settle(30)
    assert history.settle(30)
    kept = found(history)
    assert kept.count(("over-quota-frozen", KEY)) == 3
    assert kept[-1] == ("tenant-released", f"{1999:016x}")
    history.close(10)
    assert (tmp_path / EVENTS_FILE).stat().st_size < 2 << 20


def test_a_queue_full_of_other_events_has_room_for_evidence(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PAUSE_SECONDS", 2.0)  # the writer is slower than the flood
    history = opened(100 << 20)
    for number in range(store._MOST_QUEUED + 1000):
        history.note(time.time(), "request-refused", "warning", {"uid": 1000, "n": number})
    history.note(time.time(), "over-quota-frozen", "warning", {"tenant": KEY})
    assert history.settle(30)
    assert ("over-quota-frozen", KEY) in found(history)


def test_a_suppressed_event_is_not_kept(opened: Open, lines: list[bytes]) -> None:
    history = opened(100 << 20)
    attach_listener(history.note)
    try:
        for _ in range(5000):
            log("request-refused", "warning", op="open", uid=1000, error="x" * 300)
        log("caller-refused", "warning", op="set", pid=1, uid=1001, error="set requires root")
    finally:
        detach_listener(history.note)
    assert history.settle(30)
    assert 0 < len(found(history)) == len(lines) - 1 < 1000
