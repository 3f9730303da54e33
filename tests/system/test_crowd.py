# SPDX-License-Identifier: Apache-2.0
"""200 containers at once: none fails, each has its own, and nothing stays allocated."""

from __future__ import annotations

from collections import Counter

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.crowd import Crowd

from .waiting import wait_until

COUNT = 200


def test_all_are_created_and_nothing_leaks() -> None:
    with Stack(cards=16) as stack:
        stack.start_daemon()
        crowd = Crowd(stack, COUNT, {"memory": "1GiB"})
        done = crowd.create(str(stack.installation.launcher), stack.environment)
        failed = [each.said for each in done if each.status != 0]
        assert failed == []
        client = Client(stack.socket)
        tenants = client.tenants()
        assert {row["id"] for row in tenants} == {bundle.id for bundle in crowd.bundles}
        assert {row["state"] for row in tenants} == {"bound"}
        shares = Counter(card["uuid"] for row in tenants for card in row["cards"])
        assert max(shares.values()) <= 16
        crowd.remove()
        wait_until(lambda: not client.tenants())
        assert sum(card["allocated_bytes"] for card in client.cards()) == 0
