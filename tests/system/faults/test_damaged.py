# SPDX-License-Identifier: Apache-2.0
"""State that was torn or damaged while the daemon was away: tenants keep what they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.hostile.container import GIB, RuntimeNamespace

from .conftest import events, kill
from .neighbour import QUOTA_BYTES, working


def zeroed(ledger: Path) -> None:
    for file in ledger.iterdir():
        file.write_bytes(bytes(file.stat().st_size))


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
