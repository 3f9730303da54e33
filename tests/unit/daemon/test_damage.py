# SPDX-License-Identifier: Apache-2.0
"""A damaged ledger, damaged copies: no promise is lost, and what cannot be known is said."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.daemon.store import quarantine, tables
from gpushare.daemon.store.entry import Entry, Holding
from gpushare.daemon.store.holds import Hold
from gpushare.daemon.store.ledger import Ledger

from .fakes import GIB, entry

BOOT = "boot-1"
PAGE = 4096
COUNT = 40

Damage = Callable[[Path], None]


def at(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.db", BOOT)


def filled(folder: Path) -> Mapping[str, Entry]:
    """Leave a ledger of many entries as a killed daemon does: with its write-ahead log."""
    live = folder / "live"
    live.mkdir()
    ledger = at(live)
    ledger.confirm()
    for number in range(COUNT):
        made = entry(f"{number:016x}", memory_gib=1 + number % 7, cores=number)
        ledger.add(replace(made, created=float(number)))
    for number in range(0, COUNT, 3):
        ledger.bind(f"{number:016x}", pid=number + 2, starttime=7, cgroup=f":/{number}")
    ledger.release("0" * 16)
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        shutil.copy(live / name, folder)
    shutil.copytree(live / "copies", folder / "copies")
    entries = ledger.entries
    ledger.close()
    return entries


def zeroed(folder: Path) -> None:
    file = folder / "ledger.db"
    file.write_bytes(bytes(file.stat().st_size))


def garbage(folder: Path) -> None:
    (folder / "ledger.db").write_bytes(b"not a database at all, but long enough" * 100)


def emptied(folder: Path) -> None:
    (folder / "ledger.db").write_bytes(b"")


def removed(folder: Path) -> None:
    for file in folder.glob("ledger.db*"):
        file.unlink()


def log_lost(folder: Path) -> None:
    (folder / "ledger.db-wal").unlink()


def log_of_another(folder: Path) -> None:
    (folder / "ledger.db-wal").write_bytes(os.urandom(PAGE * 3))


def index_of_another(folder: Path) -> None:
    (folder / "ledger.db-shm").write_bytes(os.urandom(PAGE * 8))


def checkpointed(folder: Path) -> None:
    store = sqlite3.connect(folder / "ledger.db")
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()


def a_byte_of_a_promise(folder: Path) -> None:
    """SQLite has no checksum of its pages: it cannot see this one."""
    checkpointed(folder)
    store = sqlite3.connect(folder / "ledger.db", isolation_level=None)
    store.execute("UPDATE holding SET memory_bytes = 1 WHERE key = ?", (f"{1:016x}",))
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        *(zeroed, garbage, emptied, removed, log_lost, log_of_another, index_of_another),
        a_byte_of_a_promise,
    ],
)
def test_a_ledger_that_is_damaged_is_made_again_as_it_was(tmp_path: Path, damage: Damage) -> None:
    before = filled(tmp_path)
    damage(tmp_path)
    ledger = at(tmp_path)
    assert ledger.entries == before
    assert not ledger.unknown
    assert ledger.is_complete
    ledger.close()
    again = at(tmp_path)
    assert again.entries == before
    assert not again.told
    again.close()


def test_a_ledger_cut_at_every_page_is_made_again_as_it_was(tmp_path: Path) -> None:
    before = filled(tmp_path)
    checkpointed(tmp_path)
    whole = (tmp_path / "ledger.db").read_bytes()
    assert len(whole) > 5 * PAGE
    for size in range(0, len(whole), PAGE // 2):
        (tmp_path / "ledger.db").write_bytes(whole[:size])
        ledger = at(tmp_path)
        assert ledger.entries == before, size
        ledger.close()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_becomes_of_its_bytes_no_promise_is_lost(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of the ledger and of some copies: what is not there any more is said to be unknown."""
    folder = tmp_path_factory.mktemp("damage")
    before = filled(folder)
    if data.draw(st.booleans()):
        checkpointed(folder)
    for name in ("ledger.db", "ledger.db-wal"):
        file = folder / name
        content = bytearray(file.read_bytes() if file.exists() else b"")
        for _ in range(data.draw(st.integers(0, 4)) if content else 0):
            start = data.draw(st.integers(0, len(content) - 1))
            length = data.draw(st.sampled_from((1, 4, 512, PAGE)))
            content[start : start + length] = data.draw(st.randoms()).randbytes(length)
        if content:
            file.write_bytes(content)
    spoiled = data.draw(st.sets(st.sampled_from(sorted(before)), max_size=3))
    for key in spoiled:
        copy = folder / "copies" / key
        cut = data.draw(st.integers(0, copy.stat().st_size - 1))
        copy.write_bytes(copy.read_bytes()[:cut] + data.draw(st.binary(max_size=8)))
    ledger = at(folder)
    for key, promised in before.items():
        if key in spoiled:
            assert key in ledger.entries or key in ledger.unknown
        else:
            assert ledger.entries[key] == promised
    ledger.close()


def test_what_the_disk_does_not_take_is_kept_in_copies_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(tmp_path)
    connect = sqlite3.connect

    def refused(file: Path, **named: Any) -> sqlite3.Connection:
        if str(file) != ":memory:":
            raise sqlite3.OperationalError("unable to open database file")
        made: sqlite3.Connection = connect(file, **named)
        return made

    monkeypatch.setattr(sqlite3, "connect", refused)
    ledger = at(tmp_path)
    assert ledger.entries == before
    assert "unable to open database file" in ledger.fault
    added = entry("f" * 16)
    ledger.add(added)
    ledger.release(f"{1:016x}")
    ledger.settle()
    assert ledger.fault
    monkeypatch.undo()
    ledger.settle()
    assert not ledger.fault
    after = dict(ledger.entries)
    assert after.keys() == (before.keys() | {added.key}) - {f"{1:016x}"}
    ledger.close()
    shutil.rmtree(tmp_path / "copies")
    again = at(tmp_path)
    assert again.entries == after
    again.close()


def test_a_full_disk_undoes_what_it_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two it is that cannot be written: the other is as it was."""
    ledger = at(tmp_path)
    ledger.add(entry())
    before = dict(ledger.entries)
    grown = replace(entry(), holdings=(Holding("GPU-0000", 9 * GIB),))
    steps: list[Callable[[], object]] = [
        lambda: ledger.add(entry("f" * 16)),
        lambda: ledger.resize(grown),
        lambda: ledger.release(entry().key),
    ]

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    @contextmanager
    def database_full(store: sqlite3.Connection | None) -> Iterator[None]:
        if store is not None:
            raise sqlite3.OperationalError("database or disk is full")
        yield

    for step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            if step is not steps[2]:  # which writes nothing
                with pytest.raises(OSError, match="nothing new can be noted"):
                    step()
        with monkeypatch.context() as patch:
            patch.setattr(tables, "changed", database_full)
            with pytest.raises(OSError, match="database or disk is full"):
                step()
        assert ledger.entries == before
        assert sorted(file.name for file in (tmp_path / "copies").iterdir()) == [entry().key]
    ledger.close()
    for lost in ("nothing", "ledger.db"):
        if lost != "nothing":
            (tmp_path / lost).unlink()
        again = at(tmp_path)
        assert again.entries == before
        again.close()


def test_damaged_copies_are_made_again_from_the_ledger_and_kept(tmp_path: Path) -> None:
    before = filled(tmp_path)
    key = f"{5:016x}"
    (tmp_path / "copies" / key).write_text("00000000 {}")
    (tmp_path / "copies" / f".{1:016x}").write_text("half a dra")
    ledger = at(tmp_path)
    assert ledger.entries == before
    assert (tmp_path / "copies" / f"{key}.damaged").read_text() == "00000000 {}"
    ledger.close()
    removed(tmp_path)
    ledger = at(tmp_path)
    assert ledger.entries == before
    ledger.close()


@pytest.mark.parametrize("damage", [zeroed, log_lost])
def test_who_was_held_still_is_known_after_the_damage(tmp_path: Path, damage: Damage) -> None:
    filled(tmp_path)
    ledger = at(tmp_path)
    checkpointed(tmp_path)
    held = Hold(f"{1:016x}", "operator", "maintenance", 1.0, cgroup=":/a")
    ledger.holds.put(Hold(f"{1:016x}", "audit", "over", 2.0))
    ledger.holds.put(held)
    ledger.holds.put(Hold(f"{2:016x}", "operator", "maintenance", 3.0))
    ledger.holds.drop(f"{1:016x}", "audit")
    ledger.release(f"{2:016x}")
    for name in ("ledger.db", "ledger.db-wal"):  # as a killed daemon leaves them
        shutil.copy(tmp_path / name, tmp_path / f"kept-{name}")
    ledger.close()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.move(tmp_path / f"kept-{name}", tmp_path / name)
    damage(tmp_path)
    for _ in range(2):
        again = at(tmp_path)
        assert again.holds.all == {held.key: (held,)}
        again.close()


def test_what_was_damaged_is_kept_a_bounded_number_of_times(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / "x.json").write_text(str(number))
        (tmp_path / "x.json-wal").write_text(str(number))
        aside = quarantine.set_aside(tmp_path / "x.json", "-wal")
        assert aside.read_text() == str(number)
    names = sorted(path.name for path in tmp_path.iterdir())
    kept = [f"x.json.damaged-{number}{end}" for number in (4, 5, 6, 7) for end in ("", "-wal")]
    assert names == kept


def test_entries_of_an_earlier_version_have_what_the_ledger_says_beside_them(
    tmp_path: Path,
) -> None:
    """Its copies know fewer fields, and are no reason to forget the others."""
    ledger = at(tmp_path)
    added = replace(entry(), weight=7, priority=2, maker=4, maker_starttime=9)
    ledger.add(added)
    copy = tmp_path / "copies" / added.key
    said = ledger._copies._read(copy)
    assert said is not None
    for name in ("weight", "priority", "maker"):
        del said[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpushare.daemon.store.copies._fields", lambda _: said)
        with ledger._copies.changing([added]):
            pass
    ledger.close()
    again = at(tmp_path)
    assert again.entries == {added.key: added}
    assert not again.told
    again.close()
