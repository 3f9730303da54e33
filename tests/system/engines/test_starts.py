# SPDX-License-Identifier: Apache-2.0
"""As many containers as the cards have shares, started by an engine at once.

gpushared is killed while it starts them. 200 of them, with it and without, are a row of ./dev bench
(starts).
"""

from __future__ import annotations

from collections import Counter

from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until

from .node import CriNode
from .starts import CriContainers, killed_after, start_all

CARDS = 2
SHARES = 16  # of a card
COUNT = CARDS * SHARES


def test_containerd_starts_all_pods_that_fit_while_gpushared_is_killed() -> None:
    """None is refused or lost, each has its share, and all is free when they have ended."""
    with Stack(distribution=HOST, cards=CARDS) as stack:
        stack.start_daemon()
        client = stack.client
        with CriNode(stack) as node:
            containers = CriContainers(node, COUNT, memory="1GiB")
            try:
                with killed_after(stack, COUNT // 3):
                    done = start_all(containers)
                assert [each.error for each in done if each.error] == []
                rows = client.tenants()
                assert {row["id"] for row in rows} == set(containers.ids)
                assert {row["state"] for row in rows} == {"bound"}
                cards = Counter(card["uuid"] for row in rows for card in row["cards"])
                assert set(cards.values()) == {SHARES}
            finally:
                containers.remove()
        wait_until(lambda: not client.tenants())
        assert sum(card["allocated_bytes"] for card in client.cards()) == 0
