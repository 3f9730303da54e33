# SPDX-License-Identifier: Apache-2.0
"""The ledger: what is in it survives the daemon, and nothing else does."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.store.ledger import Entry, Holding, Ledger, LedgerError

from .fakes import GIB, entry


def opened(folder: Path, boot: str = "boot-1") -> Ledger:
    return Ledger(folder / "ledger.db", boot)


def reopened(ledger: Ledger, boot: str = "boot-1") -> Ledger:
    ledger.close()
    return Ledger(ledger.file, boot)


def full_entry() -> Entry:
    return Entry(
        key="ab" * 8,
        state="reserved",
        id="c0ffee",
        name="train",
        engine="docker",
        bundle="/run/bundle",
        uid=7,
        policy="fixed-share",
        isolation="interposer",
        why="",
        quota={"memory": "4GiB env"},
        created=12.5,
        expires=99.5,
        notes=('env GPUSHARE_COUNT "4" was not taken',),
        namespace="team",
        sandbox="5a4d",
        container="train",
        holdings=(
            Holding("GPU-0000", 4 * GIB, 30, 30),
            Holding("GPU-1000", 4 * GIB, 30, 30),
        ),
    )


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    assert reopened(ledger).entries == {full_entry().key: full_entry()}


def test_what_is_published_is_what_is_stored(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    key = full_entry().key
    ledger.bind(key, pid=4, starttime=5, cgroup=":/x")
    ledger.rename(key, "other", "podman")
    resized = [
        replace(
            holding,
            memory_bytes=6 * GIB,
            memory_limit_bytes=8 * GIB,
            cores=40,
            reserved_cores=0,
        )
        for holding in full_entry().holdings
    ]
    wanted = replace(
        ledger.entries[key],
        holdings=tuple(resized),
        quota={"memory": "6GiB operator"},
        policy="native-burst-share",
        weight=3,
        priority=0,
        class_="online",
    )
    ledger.resize(wanted)
    ledger.add(entry("1" * 16))
    ledger.release("1" * 16)
    published = dict(ledger.entries)
    assert published[key] == replace(
        full_entry(),
        state="bound",
        pid=4,
        starttime=5,
        cgroup=":/x",
        name="other",
        engine="podman",
        quota={"memory": "6GiB operator"},
        policy="native-burst-share",
        weight=3,
        priority=0,
        class_="online",
        holdings=tuple(resized),
    )
    assert reopened(ledger).entries == published


def test_the_same_key_again_replaces_the_entry(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    again = replace(full_entry(), holdings=full_entry().holdings[:1])
    ledger.add(again)
    assert reopened(ledger).entries == {again.key: again}


def test_a_release_of_nothing_is_fine(tmp_path: Path) -> None:
    opened(tmp_path).release("0" * 16)


def test_readers_keep_what_they_looked_at(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    before = ledger.entries
    ledger.add(entry())
    assert not before
    with pytest.raises(TypeError):
        ledger.entries["x"] = entry()  # type: ignore[index]


def test_another_boot_finds_it_empty(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.add(full_entry())
    second = reopened(ledger, "boot-2")
    assert not second.entries
    assert not reopened(second, "boot-2").entries


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    broken = replace(entry(), holdings=(Holding("GPU-0000", 0),))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.add(broken)
    assert not ledger.entries
    assert not reopened(ledger).entries


def test_a_store_of_a_later_format_is_neither_read_nor_moved(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.close()
    with sqlite3.connect(ledger.file) as store:
        store.execute("UPDATE about SET format = 99")
    store.close()
    with pytest.raises(LedgerError, match="format 99"):
        opened(tmp_path)
    assert not list(tmp_path.glob("*.damaged-*"))


def test_each_daemon_has_the_next_number_of_this_boot(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert ledger.generation == 1
    ledger.confirm()
    ledger = reopened(ledger)
    assert ledger.generation == 2
    ledger.close()
    ledger.file.write_bytes(b"damaged" * 1000)
    ledger = opened(tmp_path)
    assert ledger.generation == 3
    assert reopened(ledger, "boot-2").generation == 1
