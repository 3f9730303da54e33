# SPDX-License-Identifier: Apache-2.0
"""State that was torn or damaged while the daemon was away: tenants keep what they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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


def allocated(place: RuntimeNamespace) -> list[int]:
    return [card["allocated_bytes"] for card in place.client.cards()]


@pytest.mark.gate
def test_a_container_without_ledger_and_copy_is_restored_from_its_pages(
    place: RuntimeNamespace,
) -> None:
    with working(place) as neighbour:
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
    whole = RuntimeContainer(place, "runc", quota={"count": "1"}, args=IDLE)
    with working(place) as neighbour:
        assert whole.create() == 0
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
