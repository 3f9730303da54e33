# SPDX-License-Identifier: Apache-2.0
"""What happened is kept for a while, and costs nothing else when it cannot be."""

from __future__ import annotations

import contextlib
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli import history as told
from gpushare.daemon.core.log import attach_listener, detach_listener, log
from gpushare.daemon.store import history as store
from gpushare.daemon.store.history import History
from gpushare.events import EVENTS, KEPT
from gpushare.protocol import HistoryEvent

from .fakes import wait_until

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
    attach_listener(history.note)
    try:
        yield
    finally:
        detach_listener(history.note)


def note(history: History, event: str = "tenant-released", at: float = 0.0, **fields: Any) -> None:
    history.note(at or time.time(), event, "info", fields)


def page(history: History, name: str = "", since: float = 0.0) -> list[HistoryEvent]:
    assert history.settle(20)
    return history.page(name, since, 0, 10_000)


def test_a_logged_event_is_stored_and_read_back(opened: Open) -> None:
    history = opened()
    with attached(history):
        log("tenant-released", tenant="0" * 16, id="abc", name="team/train-0/main", why="it ended")
        log("tenant-process-attached", tenant="0" * 16)  # not kept
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
    history = opened(name_of=lambda key: ("abc", "train") if key == "k" else None)
    note(history, "gate-bypass-detected", tenant="k")
    note(history, "gate-bypass-detected", tenant="other")
    assert [(row["id"], row["name"]) for row in page(history)] == [("abc", "train"), ("", "")]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("", [1, 2, 3, 4]),
        ("team/train-0/main", [1, 3]),
        ("main", [1, 3]),
        ("train-0/main", [1, 3]),
        ("serve", [2]),
        ("ffff", [2]),
        ("k2", [2]),
        ("GPU-1", [4]),
        ("%", []),
        ("nobody", []),
    ],
)
def test_a_container_is_found_as_gpushare_ps_shows_it(
    opened: Open, name: str, numbers: list[int]
) -> None:
    history = opened()
    note(history, tenant="k1", id="eeee0", name="team/train-0/main")
    note(history, tenant="k2", id="ffff0", name="serve")
    note(history, "gate-bypass-detected", tenant="k1", name="eeee0")  # before its engine had told
    note(history, "card-policy-changed", card="GPU-1")
    assert [row["number"] for row in page(history, name)] == numbers


def test_it_goes_on_across_restarts_and_boots(opened: Open) -> None:
    for boot in ("boot-1", "boot-1", "boot-2"):
        history = opened(boot=boot)
        note(history, tenant="k")
        assert history.settle(20)
        history.close(10)
    seen = [(row["boot_id"], row["generation"]) for row in history.page("", 0.0, 0, 10)]
    assert seen == [("boot-1", 1), ("boot-1", 2), ("boot-2", 3)]


def test_pages_follow_each_other_without_a_gap(opened: Open) -> None:
    history = opened()
    for number in range(25):
        note(history, why=number)
    assert history.settle(20)
    found: list[HistoryEvent] = []
    while rows := history.page("", 0.0, found[-1]["number"] if found else 0, 10):
        found += rows
    assert [row["fields"]["why"] for row in found] == list(range(25))


def test_since_leaves_out_earlier_events(opened: Open) -> None:
    history = opened()
    now = time.time()
    note(history, at=now - 7200, why="old")
    note(history, at=now, why="new")
    assert [row["fields"]["why"] for row in page(history, since=now - 3600)] == ["new"]


def test_events_older_than_the_retention_are_deleted(opened: Open) -> None:
    first = opened()
    note(first, at=time.time() - 8 * DAY, why="old")
    note(first, why="new")
    assert first.settle(20)
    first.close(10)
    second = opened()
    note(second, why="newer")
    assert [row["fields"]["why"] for row in page(second)] == ["new", "newer"]


def test_it_takes_no_more_of_the_disk_than_it_may(opened: Open, tmp_path: Path) -> None:
    most = 1 << 20
    history = opened(most_bytes=most)
    for number in range(400):
        note(history, why=number, text="x" * 8000)
        if number % 50 == 49:
            assert history.settle(20)
    rows = page(history)
    assert rows[-1]["fields"]["why"] == 399  # the oldest went
    assert 10 < len(rows) < 300
    history.close(10)
    assert (tmp_path / store.NAME).stat().st_size < 2 * most


def test_without_days_nothing_is_kept(opened: Open, tmp_path: Path) -> None:
    history = opened(days=0.0)
    note(history)
    history.close(10)
    assert not (tmp_path / store.NAME).exists()


@pytest.mark.parametrize("damage", [b"this is no database at all" * 100, b"\0" * 8192])
def test_a_damaged_file_is_put_aside_and_another_begun(
    opened: Open, tmp_path: Path, damage: bytes
) -> None:
    first = opened()
    note(first)
    assert first.settle(20)
    first.close(10)
    file = tmp_path / store.NAME
    file.write_bytes(file.read_bytes()[:100].replace(b"SQLite", b"Damage") + damage)
    second = opened()
    with attached(second):
        note(second, why="goes on")
        wait_until(lambda: [row["event"] for row in page(second)][-1:] == ["history-damaged"])
    assert page(second)[0]["fields"].get("why") == "goes on"
    assert (tmp_path / f"{store.NAME}.damaged").exists()
    assert second.lost == 0


def test_a_page_damaged_in_the_middle_is_found_at_the_start(opened: Open, tmp_path: Path) -> None:
    first = opened()
    for number in range(200):
        note(first, text="x" * 4000, why=number)
    assert first.settle(20)
    first.close(10)
    file = tmp_path / store.NAME
    content = bytearray(file.read_bytes())
    for offset in range(4096 * 4, len(content) - 4096, 4096):
        content[offset : offset + 64] = b"\xff" * 64
    file.write_bytes(content)
    second = opened()
    note(second, why="goes on")
    assert [row["fields"]["why"] for row in page(second)] == ["goes on"]


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
            wait_until(lambda: not history.fault)
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


def test_a_folder_that_is_gone_is_no_harm(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_AGAIN_SECONDS", 0.05)
    (tmp_path / store.NAME).mkdir(parents=True)  # nothing can be opened there
    history = opened()
    note(history, why="first")
    wait_until(lambda: bool(history.fault))
    (tmp_path / store.NAME).rmdir()
    wait_until(lambda: not history.fault)
    assert [row["fields"]["why"] for row in page(history)] == ["first"]


def test_a_second_reader_does_not_hold_the_writer_up(opened: Open, tmp_path: Path) -> None:
    history = opened()
    note(history, why=1)
    assert history.settle(20)
    reader = sqlite3.connect(f"file:{tmp_path / store.NAME}?mode=ro", uri=True)
    cursor = reader.execute("SELECT * FROM event")
    note(history, why=2)
    assert history.settle(20)
    assert not history.fault
    cursor.close()
    reader.close()


def test_only_root_reads_the_file(opened: Open, tmp_path: Path) -> None:
    history = opened()
    note(history)
    assert history.settle(20)
    folder = (tmp_path / store.NAME).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with contextlib.closing(sqlite3.connect(folder / "events.db")) as reader:
        reader.execute("SELECT * FROM event").fetchone()
        modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert modes == dict.fromkeys(("events.db", "events.db-shm", "events.db-wal"), 0o600)


def test_every_kept_event_has_a_sentence() -> None:
    assert sorted(KEPT - told.TEXTS.keys()) == []
    assert sorted(told.TEXTS.keys() - EVENTS.keys()) == []


def test_a_name_of_bytes_that_are_no_text_is_kept_as_they_are_written(opened: Open) -> None:
    history = opened()
    note(history, tenant="k", name="pal\udce9", why="\udcff")
    [row] = page(history)
    assert (row["name"], row["fields"]["why"]) == ("pal\\udce9", "\udcff")


def test_an_internal_error_loses_one_event_and_keeps_later_ones(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = opened()
    note(history, why=1)
    assert history.settle(20)
    with monkeypatch.context() as patched:
        patched.setattr(history, "_write", lambda *_: 1 / 0)
        note(history, why=2)
        wait_until(lambda: bool(history.fault))
    note(history, why=3)
    wait_until(lambda: not history.fault)
    assert [row["fields"].get("why") for row in page(history)] == [1, 3]
    assert history.lost == 1


def test_a_file_that_cannot_be_opened_for_its_rights_is_tried_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_AGAIN_SECONDS", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refused)
        history = opened()
        note(history, why="first")
        wait_until(lambda: "not permitted" in history.fault)
    wait_until(lambda: not history.fault)
    assert [row["fields"]["why"] for row in page(history)] == ["first"]


def refused(path: Path, **_: object) -> None:
    raise PermissionError(1, "Operation not permitted", str(path))


def test_an_unreadable_history_is_reported_with_its_file(opened: Open, tmp_path: Path) -> None:
    history = opened(days=0.0)
    with pytest.raises(FileNotFoundError, match="there is no history yet"):
        history.page("", 0.0, 0, 10)
    (tmp_path / store.NAME).parent.mkdir()
    (tmp_path / store.NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(OSError, match="cannot be read now"):
        history.page("", 0.0, 0, 10)


def test_a_refused_container_is_found_by_its_id(opened: Open) -> None:
    history = opened()
    note(history, "request-refused", id="deadbeef", op="create", error="no room")
    note(history, "request-refused", id="0dead", op="create", error="no room")
    note(history, "daemon-ready")
    assert [row["id"] for row in page(history, "dead")] == ["deadbeef"]


def test_a_pods_refused_container_is_found_by_its_name(opened: Open) -> None:
    history = opened()
    for pod in ("job-1", "job-2"):
        note(history, "request-refused", id=f"id-of-{pod}", name=f"ai/{pod}/train", op="create")
    assert [row["id"] for row in page(history, "ai/job-2/train")] == ["id-of-job-2"]
    assert len(page(history, "train")) == 2
    assert page(history, "rain") == []
