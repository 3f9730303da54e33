# SPDX-License-Identifier: Apache-2.0
"""200 pods of the device plugin at once: each is on the card of its ids, and none is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.crowd import Crowd
from tests.stack.kubelet import Admitted, StandInKubelet
from tests.stack.node_agent import NodeAgent, set_mode

from .waiting import wait_until

COUNT = 200
CARDS = 16
RESOURCE = "gpushare.io/memory-gib"
#: As many as a kubelet admits while it creates others.
AT_ONCE = 8


def test_all_are_created_on_the_cards_of_their_ids() -> None:
    with Stack(cards=CARDS) as stack:
        with stack.config.open("a") as settings:
            settings.write(f"max_tenants: {COUNT}\n")  # the kubelet fills one card after the other
        set_mode(stack, "plugin")
        stack.start_daemon()
        crowd = Crowd(stack, COUNT, {})
        with NodeAgent(stack) as agent, StandInKubelet(agent.folder) as kubelet:
            agent.start()
            wait_until(lambda: kubelet.allocatable(RESOURCE) > COUNT)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                given = list(pool.map(lambda _: kubelet.admit(RESOURCE, 1), range(COUNT)))
        assert len(set().union(*(each.devices for each in given))) == COUNT
        for bundle, each in zip(crowd.bundles, given, strict=True):
            [mount] = each.mounts()
            bundle.config["mounts"].append(
                {
                    "type": "bind",
                    "source": mount["host_path"],
                    "destination": mount["container_path"],
                    "options": ["rbind", "ro"],
                }
            )
        done = crowd.create(str(stack.installation.launcher), stack.environment)
        assert [each.said for each in done if each.status != 0] == []
        client = Client(stack.socket)
        rows = {row["id"]: row for row in client.tenants()}
        assert {row["state"] for row in rows.values()} == {"bound"}
        cards = {
            bundle.id: card_of(each) for bundle, each in zip(crowd.bundles, given, strict=True)
        }
        assert {name: row["cards"][0]["uuid"] for name, row in rows.items()} == cards
        crowd.remove()
        wait_until(lambda: not client.tenants())
        assert sum(card["allocated_bytes"] for card in client.cards()) == 0


def card_of(given: Admitted) -> str:
    """Return the card of a container's ids."""
    [uuid] = {device.partition(".")[0] for device in given.devices}
    return uuid
