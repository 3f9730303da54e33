# SPDX-License-Identifier: Apache-2.0
"""State that was torn or damaged while the daemon was away: tenants keep what they have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare import client
from tests.e2e.hostile.container import GIB, Container, Place
from tests.e2e.waiting import wait_until
from tests.stack import Stack

from .conftest import events, gpushare, kill
from .neighbour import QUOTA_BYTES, working

IDLE = ("/bin/busybox", "sleep", "1000")


@pytest.fixture
def two_cards() -> Iterator[Place]:
    with Stack(cards=2) as stack:
        made = Place(stack, bind=600)
        stack.start_daemon()
        yield made
        made.close()


def without_its_log(ledger: Path) -> None:
    """Which is all of it: so little is written to it that it was never copied to its file."""
    ledger.with_name("ledger.db-wal").unlink()


def zeroed(ledger: Path) -> None:
    without_its_log(ledger)
    ledger.write_bytes(bytes(8192))


def torn(ledger: Path) -> None:
    log = ledger.with_name("ledger.db-wal")
    os.truncate(log, log.stat().st_size // 2 + 100)


def overwritten(ledger: Path) -> None:
    without_its_log(ledger)
    ledger.write_bytes(os.urandom(8192))


def removed(ledger: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        ledger.with_name(f"ledger.db{ending}").unlink(missing_ok=True)


@contextmanager
def idle(place: Place, **quota: str) -> Iterator[Container]:
    """Run a container that does nothing with what it has, for as long as the block."""
    container = Container(place, "runc", quota=quota, args=IDLE)
    assert container.create() == 0
    try:
        yield container
    finally:
        container.remove()


def shown(place: Place) -> dict[str, Any]:
    """Return what is promised to whom."""
    fields = ("id", "key", "state", "pid", "quota", "isolation", "created")
    return {
        row["key"]: (
            [row[field] for field in fields],  # type: ignore[literal-required]
            [(card["index"], card["memory_bytes"]) for card in row["cards"]],
        )
        for row in place.rows()
    }


def promised(place: Place) -> list[int]:
    return [card["promised_bytes"] for card in place.client.cards()]


def test_whatever_becomes_of_the_ledger_who_runs_keeps_its_part(two_cards: Place) -> None:
    """A share that works and a whole card; the ledger is made again as it was, each time."""
    place = two_cards
    with working(place) as neighbour, idle(place, count="1"):
        before, sums = shown(place), promised(place)
        assert len(before) == 2
        for damage in (zeroed, torn, overwritten, without_its_log, removed):
            kill(place)
            damage(place.stack.root / "run" / "ledger.db")
            place.stack.start_daemon()
            assert shown(place) == before, damage
            assert promised(place) == sums, damage
            with pytest.raises(client.Refused, match="no card has room"):
                place.client.open({"memory": "110GiB"}, name="more", pid=0, rootless=False)
            neighbour.assert_undisturbed()
        assert "the ledger had lost 2 tenants' promises" in gpushare(place, "doctor")
    place.assert_empty()
    asides = [str(line["aside"]) for line in events(place, "ledger-damaged")]
    assert len(asides) == 2  # zeros and random bytes; of the rest SQLite says nothing
    assert all(Path(aside).exists() for aside in asides)
    assert len(events(place, "ledger-rebuilt")) == 2
    assert len(events(place, "ledger-behind")) == 3


@pytest.mark.parametrize("runtime", ["runc", "crun"], indirect=True)
def test_who_is_in_neither_ledger_nor_copy_is_taken_over_from_its_pages(
    place: Place, runtime: str
) -> None:
    with working(place, runtime) as neighbour:
        [row] = place.rows()
        kill(place)
        zeroed(place.stack.root / "run" / "ledger.db")
        (place.stack.root / "run" / "copies" / row["key"]).write_bytes(b"damaged too")
        place.stack.start_daemon()
        [again] = place.rows()
        for field in ("id", "key", "state", "pid"):
            assert again[field] == row[field]
        assert place.promised() == QUOTA_BYTES
        assert [line["id"] for line in events(place, "tenant-recovered")] == [row["id"]]
        neighbour.assert_undisturbed()
        place.client.set(row["id"], memory="41GiB")
        assert place.promised() == QUOTA_BYTES + GIB
    place.assert_empty()


def test_of_whom_nothing_is_left_no_card_is_promised_until_an_operator_has_looked(
    two_cards: Place,
) -> None:
    """A whole card has no pages. Who runs goes on, and who asks for no GPU starts."""
    place, run = two_cards, two_cards.stack.root / "run"
    with working(place) as neighbour, idle(place, count="1") as whole:
        lost = whole.row()
        assert lost is not None
        kill(place)
        zeroed(run / "ledger.db")
        (run / "copies" / lost["key"]).write_bytes(b"damaged too")
        place.stack.start_daemon()
        asking = Container(place, "runc", quota={"memory": "1GiB"})
        assert f"what tenant {lost['key']} had is lost" in asking.try_to_run()
        assert f"rm {run}/doubt" in gpushare(place, "doctor")
        plain = Container(place, "runc", quota={}, args=IDLE)
        assert plain.create() == 0
        plain.remove()
        neighbour.assert_undisturbed()
        whole.remove()
        (run / "doubt").unlink()
        assert asking.create() == 0
        asking.remove()
        wait_until(lambda: sum(promised(place)) == QUOTA_BYTES)
        assert events(place, "state-in-doubt")
        assert events(place, "state-cleared")
    place.assert_empty()


def test_what_an_operator_set_holds_where_its_file_is_damaged(place: Place) -> None:
    container = Container(place, "runc", quota={"memory": "4GiB"}, args=IDLE)
    assert container.create() == 0
    place.client.set(container.id, memory="6GiB")
    container.remove()
    kill(place)
    file = place.stack.root / "state" / "overrides.json"
    shutil.copy(file, file.with_name("as-it-was"))
    file.write_text(file.read_text()[:-20])
    place.stack.start_daemon()
    assert f"{file} was damaged" in gpushare(place, "doctor")
    assert container.create() == 0
    row = container.row()
    assert row is not None
    assert row["quota"]["memory"] == "6GiB operator"
    assert file.with_name("overrides.json.damaged-1").exists()
    assert file.read_text() == file.with_name("as-it-was").read_text()
    container.remove()
    place.assert_empty()
