# SPDX-License-Identifier: Apache-2.0
"""State that was torn or damaged while the daemon was away: tenants keep what they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .conftest import events
from .neighbour import QUOTA_BYTES, working

_ALLOCATED_BYTES = 38 * GIB  # by the neighbour, again and again


def non_tenant_bytes(place: RuntimeNamespace) -> int:
    return sum(card["non_tenant_bytes"] for card in place.client.cards())


def zeroed(ledger: Path) -> None:
    for file in ledger.iterdir():
        file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.gate
def test_a_container_without_ledger_and_copy_keeps_its_memory_until_it_is_started_again(
    place: RuntimeNamespace,
) -> None:
    with working(place) as neighbour:
        [row] = place.rows()
        place.stack.end_daemon()
        zeroed(place.stack.root / "run" / "ledger")
        (place.stack.root / "run" / "copies" / row["key"]).write_bytes(b"damaged too")
        place.stack.start_daemon()
        neighbour.assert_undisturbed()
        assert (place.rows(), place.pages()) == ([], [])
        # It is a non-tenant from the first sample on, and is counted once.
        wait_until(lambda: non_tenant_bytes(place) >= _ALLOCATED_BYTES)
        assert non_tenant_bytes(place) < 2 * _ALLOCATED_BYTES
        [lost] = events(place, "integrity-lost")
        assert row["key"] in str(lost["reason"])
        other = RuntimeContainer(place, "runc", quota={"memory": "1GiB"})
        assert "start them again" in other.try_to_run()
    place.stack.end_daemon()
    (place.stack.root / "run" / "integrity-lost").unlink()
    place.stack.start_daemon()
    place.assert_empty()
    with working(place) as neighbour:
        neighbour.assert_undisturbed()
        assert place.allocated() == QUOTA_BYTES
