# SPDX-License-Identifier: Apache-2.0
"""A start with a ticket beside an evicted container, with real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.system.test_evict import OFTEN, holding, waits
from tests.system.waiting import wait_until

SEED = 7


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack() as made:
        made.configure(idle={"after": "1h", "action": "evict"}, timing=OFTEN)
        made.start_daemon()
        yield made


def test_the_time_of_an_evicted_container_ends_while_its_program_waits(own: Stack) -> None:
    client = own.client
    with holding(own, "100GiB") as (bundle, tenant):
        client.evict(bundle.id)
        with holding(own, "100GiB"):
            tenant.tell(f"check {SEED}")
            wait_until(lambda: waits(bundle))
            client.set(bundle.id, time_limit="1s")  # counted from its start, evicted or not
            wait_until(lambda: all(one["id"] != bundle.id for one in client.tenants()))
        events = {one["event"]: one["fields"] for one in client.history(bundle.id)}
        assert events["tenant-stop-requested"]["by"] == "time-limit"
        assert "tenant-restored" not in events
