# SPDX-License-Identifier: Apache-2.0
"""The history: what is kept of which containers, whatever happens to the disk, and at what cost."""

from __future__ import annotations

import math
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli import history as told
from gpushare.daemon.core.log import log, sinks
from gpushare.daemon.lifecycle import tenant_names
from gpushare.daemon.lifecycle.tenant_names import ContainerName
from gpushare.daemon.store import history as store
from gpushare.daemon.store.history import EventSubject, History
from gpushare.daemon.store.record import TenantRecord
from gpushare.events import EVENTS, KEPT
from gpushare.events_file import EVENTS_FILE, read_events
from gpushare.protocol import HistoryEvent
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.test_events import KEY, OTHER

Open = Callable[..., History]

DAY = 86400.0


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    made: list[History] = []

    def make(**more: Any) -> History:
        asked = {"days": 7.0, "most_bytes": 100 << 20, **more}
        made.append(History(tmp_path, asked.pop("boot", "boot-1"), **asked))
        return made[-1]

    yield make
    for one in made:
        one.close(10)


@contextmanager
def attached(history: History) -> Iterator[None]:
    sinks.append(history.note)
    try:
        yield
    finally:
        sinks.remove(history.note)


def note(history: History, event: str = "tenant-released", at: float = 0.0, **fields: Any) -> None:
    history.note(at or time.time(), event, "info", fields)


def page(history: History, since: float = 0.0) -> list[HistoryEvent]:
    assert history.settle(20)
    return history.page(EventSubject(), since, 0, 10_000)


def test_a_logged_event_is_stored_and_read_back(opened: Open) -> None:
    history = opened()
    with attached(history):
        log("tenant-released", tenant="0" * 16, id="abc", name="team/train-0/main", why="it ended")
        log("tenant-log-received", tenant="0" * 16)  # not kept
        log("card-policy-changed", card="GPU-1", policy="fixed-share")
    first, second = page(history)
    assert (first["event"], first["level"], first["key"]) == ("tenant-released", "info", "0" * 16)
    assert (first["id"], first["name"]) == ("abc", "team/train-0/main")
    assert (first["fields"], first["boot_id"], first["generation"]) == (
        {"why": "it ended"},
        "boot-1",
        1,
    )
    assert abs(first["time"] - time.time()) < 3600
    assert (second["card"], second["key"]) == ("GPU-1", "")
    assert second["number"] > first["number"]


def test_an_event_that_names_only_the_key_gets_the_name_of_its_tenant(opened: Open) -> None:
    history = opened()
    history.name_of = lambda key: ("abc", "train") if key == "k" else None
    note(history, "gate-bypass-detected", tenant="k")
    note(history, "gate-bypass-detected", tenant="other")
    assert [(row["id"], row["name"]) for row in page(history)] == [("abc", "train"), ("", "")]


def test_events_are_read_while_gpushared_does_not_run(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"events\.db"):
        read_events(tmp_path, 0, math.inf, KEPT)
    history, now = opened(), int(time.time())
    for event, at in (("tenant-released", 10), ("tenant-hung", 20), ("tenant-released", 30)):
        note(history, event, now + at)

    def found(since: float, until: float, *events: str) -> list[float]:
        rows = read_events(tmp_path, now + since, now + until, events)
        return [row["time"] - now for row in rows]

    assert history.settle(20)
    assert found(10, 31, "tenant-released") == [10, 30]
    history.close(10)
    assert found(10, 31, "tenant-released", "tenant-hung") == [10, 20, 30]
    assert found(11, 30, "tenant-released") == []
    (tmp_path / EVENTS_FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(OSError, match="cannot be read now"):
        found(0, 31, "tenant-released")


def test_it_goes_on_across_restarts_and_boots(opened: Open) -> None:
    for boot in ("boot-1", "boot-1", "boot-2"):
        history = opened(boot=boot)
        note(history, tenant="k")
        assert history.settle(20)
        history.close(10)
    seen = [(row["boot_id"], row["generation"]) for row in history.page(EventSubject(), 0.0, 0, 10)]
    assert seen == [("boot-1", 1), ("boot-1", 2), ("boot-2", 3)]


def test_events_older_than_the_retention_are_deleted(opened: Open) -> None:
    first = opened()
    note(first, at=time.time() - 8 * DAY, why="old")
    note(first, why="new")
    assert first.settle(20)
    first.close(10)
    second = opened()
    note(second, why="newer")
    assert [row["fields"]["why"] for row in page(second)] == ["new", "newer"]


@pytest.mark.parametrize("damage", [b"this is no database at all" * 100, b"\0" * 8192])
def test_a_damaged_file_is_put_aside_and_another_begun(
    opened: Open, tmp_path: Path, damage: bytes
) -> None:
    first = opened()
    note(first)
    assert first.settle(20)
    first.close(10)
    file = tmp_path / EVENTS_FILE
    file.write_bytes(file.read_bytes()[:100].replace(b"SQLite", b"Damage") + damage)
    second = opened()
    with attached(second):
        note(second, why="goes on")
        wait_until(lambda: [row["event"] for row in page(second)][-1:] == ["history-damaged"])
    assert page(second)[0]["fields"].get("why") == "goes on"
    assert (tmp_path / f"{EVENTS_FILE}.damaged").exists()
    assert second.lost == 0


def test_a_full_disk_loses_history_and_nothing_else(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses to let the file grow, as a full disk does."""
    monkeypatch.setattr(store, "_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(store, "_MOST_QUEUED", 50)
    history = opened()
    note(history, why="before")
    assert history.settle(20)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
        with attached(history):
            for number in range(300):
                note(history, text="x" * 4000, why=number)
            wait_until(lambda: bool(history.fault) and history.lost > 0)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            # The fault is gone a moment before it is logged that events are stored again.
            wait_until(lambda: "history-resumed" in [row["event"] for row in page(history)])
            note(history, why="after")
            rows = page(history)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, earlier)
    assert rows[0]["fields"]["why"] == "before"
    assert rows[-1]["fields"]["why"] == "after"
    [resumed] = [row for row in rows if row["event"] == "history-resumed"]
    assert resumed["fields"]["lost"] == history.lost > 0
    assert len(rows) - 3 == 300 - history.lost


def test_every_kept_event_has_a_sentence() -> None:
    assert sorted(KEPT - told.TEXTS.keys()) == []
    assert sorted(told.TEXTS.keys() - EVENTS.keys()) == []


def fill(history: History, event: str, count: int, **fields: Any) -> None:
    for number in range(count):
        history.note(time.time(), event, "info", {**fields, "text": "x" * 2000, "n": number})
        if number % 50 == 49:
            assert history.settle(30)
    assert history.settle(30)


def found(history: History) -> list[tuple[str, str]]:
    return [(row["event"], row["key"]) for row in history.page(EventSubject(), 0.0, 0, 100_000)]


def test_evidence_is_not_displaced_by_other_events(opened: Open) -> None:
    history = opened(most_bytes=1 << 20)
    fill(history, "over-quota-frozen", 3, tenant=KEY)
    fill(history, "tenant-reserved", 3, tenant=KEY)
    fill(history, "request-refused", 3000, uid=1000, op="open")
    kept = found(history)
    assert kept.count(("over-quota-frozen", KEY)) == 3
    assert kept.count(("tenant-reserved", KEY)) == 3  # nor are the ordinary events of others
    assert 0 < kept.count(("request-refused", "")) < 600


def test_a_tenant_that_causes_much_evidence_displaces_its_own(opened: Open) -> None:
    history = opened(most_bytes=1 << 20)
    fill(history, "over-quota-frozen", 3, tenant=KEY)
    fill(history, "tenant-reserved", 3, tenant=KEY)
    fill(history, "over-quota-cleared", 3000, tenant=OTHER)
    kept = found(history)
    assert kept.count(("over-quota-frozen", KEY)) == 3
    assert kept.count(("tenant-reserved", KEY)) == 3
    assert 0 < kept.count(("over-quota-cleared", OTHER)) < 600


FIRST, SECOND, THIRD = "4f5e6d" + "0" * 58, "4f5e99" + "1" * 58, "c0ffee" + "2" * 58

EVENT = "tenant-released"


@pytest.fixture
def daemon(node: FakeDaemon, tmp_path: Path) -> Iterator[FakeDaemon]:
    (tmp_path / "store").mkdir()
    node.history = History(tmp_path / "store", "boot-1", days=7.0, most_bytes=100 << 20)
    yield node
    node.history.close(10)


def happened(daemon: FakeDaemon, event: str = EVENT, **fields: Any) -> None:
    assert daemon.history is not None
    daemon.history.note(time.time(), event, "info", fields)


def answer(daemon: FakeDaemon, name: str, after: int = 0) -> list[HistoryEvent]:
    assert daemon.history is not None
    assert daemon.history.settle(20)
    return [*daemon.ask("history", name=name, after=after)]


def numbers(daemon: FakeDaemon, name: str) -> list[int]:
    return [row["number"] for row in answer(daemon, name)]


def running(key: str, identity: str, name: str) -> TenantRecord:
    return replace(fakes.entry(key), id=identity, name=name, engine="docker", state="bound")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("team/train-0/main", [1, 3]),
        ("main", [1, 3]),
        ("train-0", [1, 3]),
        ("team/train-0", [1, 3]),
        ("tea", [1, 3]),
        ("serve", [2]),
        ("4f5e9", [2]),
        (SECOND, [2]),
        ("k2", [2]),
        ("GPU-1", [4]),
        ("team/gpus", [5]),
    ],
)
def test_a_container_is_found_as_ps_shows_it(
    daemon: FakeDaemon, name: str, found: list[int]
) -> None:
    happened(daemon, tenant="k1", id=FIRST, name="team/train-0/main")
    happened(daemon, tenant="k2", id=SECOND, name="serve")
    happened(daemon, "gate-bypass-detected", tenant="k1")  # of which only the key was known
    happened(daemon, "card-policy-changed", card="GPU-1")
    if name in {"", "team/gpus"}:
        happened(daemon, "claim-prepared", claim="uid", name="team/gpus")
    assert numbers(daemon, name) == found


def test_a_running_container_has_the_name_that_it_has_now(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events were stored under its ID, and nothing has renamed it since."""
    key = "a" * 16
    happened(daemon, "tenant-reserved", tenant=key, id=FIRST, name=FIRST[:12])
    happened(daemon, "tenant-bound", tenant=key, id=FIRST, name=FIRST[:12])
    daemon.ledger.add(running(key, FIRST, ""))
    told = ContainerName("docker", "web")
    monkeypatch.setattr(tenant_names, "ask_engines", lambda *_: told)
    rows = answer(daemon, "web")
    assert [(row["event"], row["id"], row["name"]) for row in rows] == [
        ("tenant-reserved", FIRST, "web"),
        ("tenant-bound", FIRST, "web"),
    ]


def test_a_refused_container_is_found_by_its_pod(daemon: FakeDaemon) -> None:
    pod = {"namespace": "team", "name": "job", "uid": "0a", "container": "train"}
    happened(daemon, "request-refused", id=FIRST, name="team/job/eval", op="create", pod=pod)
    happened(daemon, "request-refused", id=SECOND, name="team/other-job/eval", op="create", pod=pod)
    for name, found in (("job/eval", [1]), ("eval", [1, 2]), ("job", [1])):
        assert numbers(daemon, name) == found
    assert answer(daemon, "job/eval")[0]["fields"]["pod"] == pod
