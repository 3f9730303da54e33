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
from tests.stack import Stack
from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .conftest import events, gpushare, kill
from .neighbour import QUOTA_BYTES, working

IDLE = ("/bin/busybox", "sleep", "1000")


@pytest.fixture
def two_cards() -> Iterator[RuntimeNamespace]:
    with Stack(cards=2) as stack:
        made = RuntimeNamespace(stack, bind_timeout_seconds=600)
        stack.start_daemon()
        yield made
        made.close()


def zeroed(ledger: Path) -> None:
    for file in ledger.iterdir():
        file.write_bytes(bytes(file.stat().st_size))


def torn(ledger: Path) -> None:
    for file in ledger.iterdir():
        os.truncate(file, file.stat().st_size // 2)


def overwritten(ledger: Path) -> None:
    for file in ledger.iterdir():
        file.write_bytes(os.urandom(1024))


def emptied(ledger: Path) -> None:
    for file in ledger.iterdir():
        file.write_bytes(b"")


def removed(ledger: Path) -> None:
    shutil.rmtree(ledger)


@contextmanager
def idle(place: RuntimeNamespace, **quota: str) -> Iterator[RuntimeContainer]:
    """Run a container that does nothing with what it has, for as long as the block."""
    container = RuntimeContainer(place, "runc", quota=quota, args=IDLE)
    assert container.create() == 0
    try:
        yield container
    finally:
        container.remove()


def shown(place: RuntimeNamespace) -> dict[str, Any]:
    """Return the allocated bytes by tenant."""
    fields = ("id", "key", "state", "pid", "quota", "isolation", "created_at")
    return {
        row["key"]: (
            [row[field] for field in fields],  # type: ignore[literal-required]
            [(card["index"], card["quota_bytes"]) for card in row["cards"]],
        )
        for row in place.rows()
    }


def allocated(place: RuntimeNamespace) -> list[int]:
    return [card["allocated_bytes"] for card in place.client.cards()]


def test_whatever_happens_to_the_ledger_running_containers_keep_their_quota(
    two_cards: RuntimeNamespace,
) -> None:
    """A share that works and a whole card; the ledger is made again as it was, each time."""
    place = two_cards
    with working(place) as neighbour, idle(place, count="1"):
        before, sums = shown(place), allocated(place)
        assert len(before) == 2
        for damage in (zeroed, torn, overwritten, emptied, removed):
            kill(place)
            damage(place.stack.root / "run" / "ledger")
            place.stack.start_daemon()
            assert shown(place) == before, damage
            assert allocated(place) == sums, damage
            with pytest.raises(client.RequestRefused, match="no card has room"):
                place.client.open({"memory": "110GiB"}, name="more", pid=0, rootless=False)
            neighbour.assert_undisturbed()
        assert "the ledger had lost 2 records, restored from their copies" in gpushare(
            place, "doctor"
        )
    place.assert_empty()
    assert len(events(place, "ledger-damaged")) == 4  # what was removed leaves nothing to look at
    repaired = [line["tenants"] for line in events(place, "ledger-repaired")]
    assert repaired == [sorted(before)] * 5


@pytest.mark.parametrize("runtime", ["runc", "crun"], indirect=True)
def test_a_container_without_ledger_and_copy_is_restored_from_its_pages(
    place: RuntimeNamespace, runtime: str
) -> None:
    with working(place, runtime) as neighbour:
        [row] = place.rows()
        kill(place)
        zeroed(place.stack.root / "run" / "ledger")
        (place.stack.root / "run" / "copies" / row["key"]).write_bytes(b"damaged too")
        place.stack.start_daemon()
        [again] = place.rows()
        for field in ("id", "key", "state", "pid"):
            assert again[field] == row[field]
        assert place.allocated() == QUOTA_BYTES
        assert [line["id"] for line in events(place, "tenant-recovered")] == [row["id"]]
        neighbour.assert_undisturbed()
        place.client.set(row["id"], memory="41GiB")
        assert place.allocated() == QUOTA_BYTES + GIB
    place.assert_empty()


def test_a_container_without_any_record_blocks_its_card_until_an_operator_acts(
    two_cards: RuntimeNamespace,
) -> None:
    """A whole card has no pages. Running tenants and containers without a request go on."""
    place, run = two_cards, two_cards.stack.root / "run"
    with working(place) as neighbour, idle(place, count="1") as whole:
        lost = whole.row()
        assert lost is not None
        kill(place)
        zeroed(run / "ledger")
        (run / "copies" / lost["key"]).write_bytes(b"damaged too")
        place.stack.start_daemon()
        asking = RuntimeContainer(place, "runc", quota={"memory": "1GiB"})
        assert f"record of tenant {lost['key']} and its copy are lost" in asking.try_to_run()
        assert f"rm {run}/integrity-lost" in gpushare(place, "doctor")
        plain = RuntimeContainer(place, "runc", quota={}, args=IDLE)
        assert plain.create() == 0
        plain.remove()
        neighbour.assert_undisturbed()
        whole.remove()
        (run / "integrity-lost").unlink()
        assert asking.create() == 0
        asking.remove()
        wait_until(lambda: sum(allocated(place)) == QUOTA_BYTES)
        assert events(place, "integrity-lost")
        assert events(place, "integrity-confirmed")
    place.assert_empty()


def test_overrides_hold_if_their_file_is_damaged(place: RuntimeNamespace) -> None:
    container = RuntimeContainer(place, "runc", quota={"memory": "4GiB"}, args=IDLE)
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
