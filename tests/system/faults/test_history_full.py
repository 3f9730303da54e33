# SPDX-License-Identifier: Apache-2.0
"""A full disk under the history: lost events are counted and reported, and nothing else suffers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.store import history as store
from gpushare.daemon.store.history import EventSubject, History
from tests.system.waiting import wait_until


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=256k", "gpushare-test", str(tmp_path)]
    subprocess.run(mounted, check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def note(history: History, number: int) -> None:
    history.note(1.0e9 + number, "tenant-released", "info", {"why": number, "text": "x" * 2000})


def fill(path: Path) -> None:
    """Write until there is no space."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_loses_history_and_says_how_much(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(store, "_MOST_QUEUED", 20)
    history = History(small, "boot", days=36500, most_bytes=100 << 20)
    try:
        note(history, 0)
        assert history.settle(30)
        filler = small / "filler"
        with pytest.raises(OSError, match="space"):
            fill(filler)
        for number in range(1, 101):
            note(history, number)
        wait_until(lambda: bool(history.fault) and history.lost > 0)
        filler.unlink()
        wait_until(lambda: not history.fault)
        assert history.settle(30)
        kept = [event["fields"]["why"] for event in history.page(EventSubject(), 0.0, 0, 1000)]
        assert kept[0] == 0
        assert kept == sorted(kept)
        assert len(kept) == 101 - history.lost
    finally:
        history.close(30)
