# SPDX-License-Identifier: Apache-2.0
"""gpushare-node as a DRA driver: claims of a stand-in cluster become devices of real pods.

Debian 13's containerd takes the CDI devices of a claim. This machine's ignores them and says
nothing, so there a pod is given the mounts that they come to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.kubernetes.api.slices import SLICES
from gpushare.protocol.kubernetes import CLAIM_MOUNT
from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import CLAIMS, AllocatedPart, ScheduledClaim
from tests.stack.distribution import DEBIAN13, HOST, Distribution
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent, write_kubeconfig
from tests.system.waiting import wait_until

from .node import CriNode
from .slices import GIB, allocated, assert_slice, probing

NODE = "node-1"


class Cluster:
    """A node of two cards in dra mode, its containerd, gpushare-node and an API server."""

    def __init__(self, stack: Stack, node: CriNode, api: StandInApiServer) -> None:
        self.stack, self.node, self.api = stack, node, api
        self.client = stack.client
        kubeconfig = write_kubeconfig(stack.root / "kubeconfig", api)
        self.agent = NodeAgent(stack, "--node", NODE, "--kubeconfig", str(kubeconfig))

    def claim(self, *cards: int, memory: str = "4Gi", **parameters: str) -> ScheduledClaim:
        """Return a claim of a part of each of the cards."""
        uuids = [row["uuid"] for row in self.client.cards()]
        parts = [AllocatedPart(uuids[at], memory=memory, request=f"r{at}") for at in cards]
        return ScheduledClaim(self.api, "train", NODE, parts, parameters=parameters)

    def conditions(self, claim: ScheduledClaim) -> list[tuple[str, str]]:
        """Return what the claim's status says of its devices."""
        path = CLAIMS.format(namespace=claim.namespace, name=claim.name)
        devices = self.api.objects[path]["status"].get("devices", [])
        return [
            (each["type"], each["status"]) for device in devices for each in device["conditions"]
        ]


@pytest.fixture(
    scope="module",
    params=[HOST, pytest.param(DEBIAN13, marks=pytest.mark.needs("debian13"))],
    ids=lambda each: each.name,
)
def distribution(request: pytest.FixtureRequest) -> Distribution:
    found: Distribution = request.param
    return found


@pytest.fixture(scope="module")
def cluster(distribution: Distribution) -> Iterator[Cluster]:
    with Stack(distribution=distribution, cards=2) as stack, StandInApiServer().running() as api:
        cdi = stack.root / "cdi"
        cdi.mkdir()
        stack.configure(kubernetes={"mode": "dra", "cdi_dir": str(cdi)})
        stack.start_daemon()
        api.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "node-uid"}})
        takes_cdi = ["enable_cdi = true", f'cdi_spec_dirs = ["{cdi}"]']
        with CriNode(stack, *(takes_cdi if distribution is DEBIAN13 else [])) as node:
            made = Cluster(stack, node, api)
            with made.agent:
                made.agent.start()
                yield made


@pytest.fixture
def kubelet(cluster: Cluster) -> Iterator[DraKubelet]:
    """A kubelet that has registered the driver, and releases what the test left prepared."""
    client = cluster.client
    with DraKubelet(cluster.agent.folder) as made:
        wait_until(lambda: is_registered(made))
        yield made
        wait_until(lambda: not client.tenants())
        for row in client.claims():
            names = {"namespace": row["namespace"], "name": row["name"]}
            made.unprepare({**names, "uid": row["claim"]})
    wait_until(lambda: client.claims() == [])


def is_registered(kubelet: DraKubelet) -> bool:
    kubelet.look()
    return bool(kubelet.drivers)


def prepared(cluster: Cluster, kubelet: DraKubelet, claim: ScheduledClaim) -> dict[str, Any]:
    """Return what a container of the claim has in its configuration."""
    answer = kubelet.prepare(claim.reference)[claim.uid]
    assert answer["error"] == ""
    names = {name for device in answer["devices"] for name in device["cdi_device_ids"]}
    place = cluster.stack.place
    if place is not None and place.distribution is DEBIAN13:
        return {"CDI_devices": [{"name": name} for name in sorted(names)]}
    mounts = []
    for path in (cluster.stack.root / "cdi").iterdir():
        spec = json.loads(path.read_text())
        for device in spec["devices"]:
            if f"{spec['kind']}={device['name']}" in names:
                for mount in device["containerEdits"]["mounts"]:
                    at = {"container_path": mount["containerPath"], "host_path": mount["hostPath"]}
                    mounts.append({**at, "readonly": True})
    return {"mounts": mounts}


@pytest.mark.gate
def test_a_pod_has_what_its_claim_was_allocated(cluster: Cluster, kubelet: DraKubelet) -> None:
    """Once the cards are published. The claim says the card, too, and how it is shared."""

    def devices() -> list[str]:
        slices = [body for path, body in cluster.api.objects.items() if path.startswith(SLICES)]
        return [device["name"] for body in slices for device in body["spec"]["devices"]]

    wait_until(lambda: len(devices()) == 2)
    claim = cluster.claim(1, policy="fixed-share")
    with cluster.node.pod() as pod:
        claim.reserve(pod.uid)
        given = prepared(cluster, kubelet, claim)
        assert prepared(cluster, kubelet, claim) == given  # the kubelet asks again
        container = pod.run("train", **given)
        assert_slice(container.probe(*probing(4 * GIB)).said, 4 * GIB)
        [row] = cluster.client.tenants()
        [card] = row["cards"]
        assert (row["name"], row["policy"]) == (container.full_name, "fixed-share")
        assert (card["index"], card["quota_bytes"], card["cores"]) == (1, 4 * GIB, 40)
        assert CLAIM_MOUNT not in Path(f"/proc/{container.pid()}/mountinfo").read_text()
        wait_until(lambda: cluster.conditions(claim) == [("Ready", "True")])
    assert kubelet.unprepare(claim.reference) == {claim.uid: {"error": ""}}


def test_claims_outlive_both_processes(cluster: Cluster, kubelet: DraKubelet) -> None:
    claim, agent, stack = cluster.claim(0), cluster.agent, cluster.stack
    with cluster.node.pod() as pod:
        claim.reserve(pod.uid)
        given = prepared(cluster, kubelet, claim)
        assert agent.process is not None
        agent.process.process.kill()
        agent.process.process.wait()
        assert stack.daemon is not None
        stack.daemon.stop()
        stack.start_daemon()
        container = pod.run("train", **given)
        assert allocated(stack) == {container.full_name: 4 * GIB}
        kubelet.forget()
        agent.start()
        claim.reserve(pod.uid, "pod-2")
        wait_until(lambda: len(cluster.client.claims()[0]["pods"]) == 2)
        wait_until(lambda: answers(kubelet, claim))


def answers(kubelet: DraKubelet, claim: ScheduledClaim) -> bool:
    """Whether the driver that starts is registered and prepares again what is prepared."""
    try:
        kubelet.look()
        return not kubelet.prepare(claim.reference)[claim.uid]["error"]
    except RuntimeError:
        return False
