# SPDX-License-Identifier: Apache-2.0
"""A node whose mode changes from dra while a claim is prepared, with the processes of a node."""

from __future__ import annotations

import pytest

from gpushare.protocol.kubernetes import ClaimDevice
from tests.stack import Stack
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent
from tests.system.waiting import wait_until

pytestmark = pytest.mark.gate

GIB = 1 << 30
RESOURCE = "gpushare.io/memory-gib"


def test_a_claim_of_the_earlier_mode_is_released_and_its_memory_offered() -> None:
    with Stack() as stack:
        stack.configure(kubernetes={"mode": "dra"})
        stack.start_daemon()
        client = stack.client
        card = client.cards()[0]["uuid"]
        part = ClaimDevice(request="g", card=card, memory_bytes=40 * GIB, cores=80, share="")
        client.prepare_claim("c-1", namespace="ai", name="train", pods=["p"], devices=[part])
        stack.configure(kubernetes={"mode": "plugin"})
        [warning] = client.status()["warnings"]
        assert "claim ai/train has 40 GiB and 80 % of card 0 and no container" in warning
        with (
            NodeAgent(stack) as agent,
            StandInKubelet(agent.folder) as plugins,
            DraKubelet(agent.folder) as claims,
        ):
            agent.start()
            wait_until(lambda: plugins.allocatable(RESOURCE) > 0)
            assert plugins.allocatable(RESOURCE) == plugins.capacity(RESOURCE) - 40
            claims.look()
            released = claims.unprepare({"namespace": "ai", "uid": "c-1", "name": "train"})
            assert released == {"c-1": {"error": ""}}
            wait_until(lambda: plugins.allocatable(RESOURCE) == plugins.capacity(RESOURCE))
        assert client.status()["warnings"] == []
