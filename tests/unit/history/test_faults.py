# SPDX-License-Identifier: Apache-2.0
"""A kill at any write, a full disk, a damaged file, a reader that never ends, and wrong clocks."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpushare.history import store as writer
from gpushare.history import tables
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from gpushare.history.store import HistoryStore, HistoryUnwritable
from gpushare.history.tables import FILE, FORMAT

from .test_store import DAY, HOUR, T0, container, folder, metrics, only

__all__ = ["folder"]  # a fixture

#: Writes samples from number `argv[2]` on, and says the number of each once it is written.
WRITE = """
import sys
from pathlib import Path
from gpushare.history.store import HistoryStore
from tests.unit.history.test_store import T0, container, metrics
store = HistoryStore(Path(sys.argv[1]))
number = int(sys.argv[2])
while True:
    found = [container(f"{n:016x}", gpu_seconds=float(number), used_bytes=7) for n in range(9)]
    store.write(T0 + 10 * number, metrics(*found))
    print(number, flush=True)
    number += 1
"""


def total(folder: Path, figure: str = "gpu_seconds", until: float = 2 * T0) -> float:
    with HistoryReader(folder) as reader:
        found = reader.containers(0, until)
        return reader.total(found[0], figure, 0, until) if found else 0.0


def test_a_kill_at_any_time_loses_nothing_that_was_written(folder: Path) -> None:
    written = -1
    for length in range(1, 40, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(folder), str(written + 1)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                written = int(line)
                if written % 41 >= length:
                    break
            process.kill()
            written = max([written, *(int(line) for line in process.stdout)])
        # It may have been killed between the transaction and the line.
        found = total(folder)
        assert found in {written, written + 1}
        assert total(folder, "used_bytes") == 70 * (found + 1)
        written = int(found)


def test_a_log_that_was_cut_at_any_place_has_all_samples_before_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LOG_PAGES", 0)  # all of it is in the log
    store = HistoryStore(folder)
    for number in range(40):
        found = [container(f"{n:016x}", gpu_seconds=float(number)) for n in range(9)]
        store.write(T0 + 10 * number, metrics(*found))
    seen, log = set(), (folder / f"{FILE}-wal").read_bytes()
    for size in (*range(0, len(log), 2060), len(log)):
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
    monkeypatch.setattr(writer, "_LOCK_SECONDS", 0.1)
    first, second = HistoryStore(folder), HistoryStore(folder)
    first.write(T0, metrics())
    with pytest.raises(HistoryUnwritable, match="unavailable"):
        second.write(T0, metrics())
    first.close()
    second.write(T0, metrics())


def test_a_folder_that_is_in_the_way_is_no_harm(folder: Path) -> None:
    folder.write_text("")
    store = HistoryStore(folder)
    with pytest.raises(HistoryUnwritable, match=r"Not a directory|File exists"):
        store.write(T0, metrics())
    assert store.is_closed
    folder.unlink()
    store.write(T0, metrics())


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


def test_only_the_group_reads_it(folder: Path) -> None:
    for gid, modes in ((None, (0o700, 0o600)), (12, (0o750, 0o640))):
        store = HistoryStore(folder, gid=gid)
        store.write(T0, metrics())
        files = [folder, *sorted(folder.iterdir())]
        assert [file.name for file in files[1:]] == [FILE, f"{FILE}-shm", f"{FILE}-wal"]
        assert [file.stat().st_mode & 0o777 for file in files] == [modes[0], *[modes[1]] * 3]
        assert {file.stat().st_gid for file in files} == {gid or 0}
        store.close()


def test_without_a_history_there_is_nothing_to_read(folder: Path) -> None:
    with pytest.raises(HistoryUnreadable, match="there is no metrics history in"):
        HistoryReader(folder)
    folder.mkdir()
    (folder / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(HistoryUnreadable, match="cannot be read now"):
        HistoryReader(folder)


def test_a_history_that_is_closed_is_read_without_the_right_to_write() -> None:
    with TemporaryDirectory(prefix="gpushare-") as top:
        Path(top).chmod(0o711)  # unlike tmp_path and the folders above it
        _read_by_the_group(Path(top, "metrics-history"))


def _read_by_the_group(folder: Path) -> None:
    store = HistoryStore(folder, gid=12)
    store.write(T0, metrics(container()))
    for close in (False, True):  # while one writes, and after
        if close:
            store.close()
        pid = os.fork()
        if not pid:
            _read_as(folder, 12)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def _read_as(folder: Path, gid: int) -> Any:
    """End with the number of containers as exit status; in a child."""
    found = 99
    try:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(65534)
        with HistoryReader(folder) as reader:
            found = len(reader.containers(0, 2 * T0))
    finally:
        os._exit(found)


def test_the_process_ends_in_silence_if_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """As when gpushared was killed: its log has no traceback of another process."""
    asked = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(asked))
        listener.listen()
        words = [sys.executable, "-m", "gpushare.history", str(asked), str(tmp_path), "7", "", ""]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            listener.accept()[0].close()
            process.stdin.close()
            assert process.stderr.read() == b""
            assert process.wait() == 0
