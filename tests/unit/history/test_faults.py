# SPDX-License-Identifier: Apache-2.0
"""A kill at any write, a full disk, a damaged file, a reader that never ends, and wrong clocks."""

from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.history import store as writer
from gpushare.history import tables
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from gpushare.history.store import HistoryStore, HistoryUnwritable
from gpushare.history.tables import FILE, FORMAT

from .test_store import DAY, HOUR, T0, container, folder, metrics, only
from .test_store import total as added

__all__ = ["folder"]  # a fixture


def total(folder: Path, figure: str = "gpu_seconds", until: float = 2 * T0) -> float:
    with HistoryReader(folder) as reader:
        found = reader.containers(0, until)
        return added(reader, found[0], figure, 0, until) if found else 0.0


def test_a_log_that_was_cut_at_any_place_has_all_samples_before_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LOG_PAGES", 0)  # all of it is in the log
    store = HistoryStore(folder)
    for number in range(40):
        found = [container(f"{n:016x}", gpu_seconds=float(number)) for n in range(9)]
        store.write(T0 + 10 * number, metrics(*found))
    seen, log = set(), (folder / f"{FILE}-wal").read_bytes()
    for size in (*range(0, len(log), 6180), len(log)):
        cut = tmp_path / "cut"
        cut.mkdir()
        shutil.copy(folder / FILE, cut)
        (cut / f"{FILE}-wal").write_bytes(log[:size])
        before = samples(cut)
        seen.add(before)
        again = HistoryStore(cut)  # and goes on
        again.write(T0 + 400, metrics(container("0" * 16, gpu_seconds=40.0)))
        again.close()
        assert total(cut) == (40 if before else 0)
        shutil.rmtree(cut)
    assert len(seen) > 10
    assert max(seen) == 40


def samples(folder: Path) -> int:
    """Return how many samples of the first container there are, each with its increase."""
    try:
        with HistoryReader(folder) as reader:
            found = reader.containers(0, 2 * T0)
            count = len(reader.series(found[0], "used_bytes", 0, 2 * T0)) if found else 0
    except HistoryUnreadable as error:
        assert "there is no metrics history" in str(error)  # noqa: PT017 - it may be readable
        return 0
    assert total(folder) == max(0, count - 1)
    return count


@contextmanager
def no_larger_files(size: int) -> Iterator[None]:
    """Have the kernel refuse to let a file grow, as a full disk does."""
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, earlier)


def test_a_full_disk_is_a_gap_and_no_increase_is_lost(folder: Path) -> None:
    store, refused = HistoryStore(folder), 0
    store.write(T0, metrics(container()))
    with no_larger_files((folder / f"{FILE}-wal").stat().st_size + 20_000):
        for number in range(1, 100):
            try:
                store.write(T0 + 10 * number, metrics(container(gpu_seconds=float(number))))
            except HistoryUnwritable:
                refused += 1
    assert 10 < refused < 99
    store.write(T0 + 1000, metrics(container(gpu_seconds=100.0)))
    assert total(folder) == 100
    with HistoryReader(folder) as reader:
        found = reader.series(only(reader), "used_bytes", T0, T0 + 2000)
        assert len(found) == 101 - refused
        assert sum(step.sampled for step in found) == 10 * (101 - refused)


@pytest.mark.parametrize("damage", ["its head", "its middle", "another format"])
def test_a_damaged_file_is_put_aside_and_another_begun(folder: Path, damage: str) -> None:
    store = HistoryStore(folder)
    for number in range(300):
        store.write(T0 + 10 * number, metrics(container()))
    store.close()
    file = folder / FILE
    content = bytearray(file.read_bytes())
    if damage == "its head":
        content[:16] = b"no database here"
    elif damage == "its middle":
        for offset in range(4096, len(content), 4096):
            content[offset : offset + 64] = b"\xff" * 64
    file.write_bytes(content)
    if damage == "another format":
        with sqlite3.connect(file) as other:
            other.execute(f"PRAGMA user_version = {FORMAT + 1}")
        other.close()
        with pytest.raises(HistoryUnreadable, match="has format"):
            HistoryReader(folder)
    store = HistoryStore(folder)
    with pytest.raises(HistoryUnwritable, match=r"it is metrics[.]db[.]damaged now"):
        store.write(T0 + DAY, metrics())
    store.write(T0 + DAY + 10, metrics(container()))
    assert "metrics.db.damaged" in store.notice
    assert (folder / f"{FILE}.damaged").exists()
    with HistoryReader(folder) as reader:
        assert only(reader).first == T0 + DAY + 10


def test_a_reader_that_never_ends_costs_no_more_than_the_log_may_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_LONGEST_LOG_BYTES", 300_000)
    store = HistoryStore(folder)
    store.write(T0, metrics(container()))
    reader = sqlite3.connect(folder / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM moment").fetchall()
    number = 1
    while (folder / f"{FILE}-wal").stat().st_size <= 300_000:
        store.write(T0 + 10 * number, metrics(container(gpu_seconds=float(number))))
        number += 1
    with pytest.raises(HistoryUnwritable, match="a program that reads it does not end"):
        store.write(T0 + 2990, metrics(container(gpu_seconds=299.0)))
    assert (folder / f"{FILE}-wal").stat().st_size < 400_000
    reader.close()
    store.write(T0 + 3000, metrics(container(gpu_seconds=300.0)))
    assert total(folder) == 300


def test_another_process_that_writes_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_LOCK_SECONDS", -1.0)
    first, second = HistoryStore(folder), HistoryStore(folder)
    first.write(T0, metrics())
    with pytest.raises(HistoryUnwritable, match="unavailable"):
        second.write(T0, metrics())
    first.close()
    second.write(T0, metrics())


def test_a_clock_that_is_set_back_loses_and_doubles_nothing(folder: Path) -> None:
    store, at, seconds = HistoryStore(folder), T0, 0.0
    for jump in (0, -1000, -5000, 20_000, -30):
        at += jump
        for _ in range(100):
            at, seconds = at + 10, seconds + 1
            store.write(at, metrics(container(created=T0, gpu_seconds=seconds, used_bytes=3)))
    at += 7 * HOUR
    store.write(at, metrics(container(created=T0, gpu_seconds=seconds, used_bytes=3)))
    store.write(at + 300, metrics(container(created=T0, gpu_seconds=seconds, used_bytes=3)))
    assert total(folder) == seconds
    assert total(folder, "used_bytes") == 3 * 10 * 502


def test_without_a_history_there_is_nothing_to_read(folder: Path) -> None:
    with pytest.raises(HistoryUnreadable, match="there is no metrics history in"):
        HistoryReader(folder)
    folder.mkdir()
    (folder / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(HistoryUnreadable, match="cannot be read now"):
        HistoryReader(folder)
