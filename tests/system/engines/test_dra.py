# SPDX-License-Identifier: Apache-2.0
"""gpushare-node as a DRA driver: claims of a stand-in cluster become CDI devices of real pods.

Debian 13's containerd alone: an older one ignores CDI devices and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.kubernetes.api.slices import SLICES
from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import CLAIMS, AllocatedPart, ScheduledClaim
from tests.stack.distribution import DEBIAN13
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent, set_mode, write_kubeconfig
from tests.system.waiting import wait_until

from .cri import CriError
from .node import CriNode
from .pod import PodContainer, PodSandbox
from .slices import GIB, allocated, assert_slice, probing

NODE = "node-1"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A node of two cards in dra mode."""
    with Stack(distribution=DEBIAN13, cards=2) as made:
        set_mode(made, "dra", cdi_dir=str(made.root / "cdi"))
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def node(stack: Stack) -> Iterator[CriNode]:
    cdi = stack.root / "cdi"
    cdi.mkdir(exist_ok=True)
    with CriNode(stack, "enable_cdi = true", f'cdi_spec_dirs = ["{cdi}"]') as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandInApiServer]:
    with StandInApiServer().running() as made:
        made.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "node-uid"}})
        yield made


@pytest.fixture(scope="module")
def agent(stack: Stack, cluster: StandInApiServer) -> Iterator[NodeAgent]:
    kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
    with NodeAgent(stack, "--node", NODE, "--kubeconfig", str(kubeconfig)) as made:
        made.start()
        yield made


@pytest.fixture
def kubelet(agent: NodeAgent, stack: Stack) -> Iterator[DraKubelet]:
    """A kubelet that has registered the driver, and releases what the test left prepared."""
    client = Client(stack.socket)
    with DraKubelet(agent.folder) as made:
        registered(made)
        yield made
        wait_until(lambda: not client.tenants())
        for row in client.claims():
            made.unprepare(
                {"namespace": row["namespace"], "name": row["name"], "uid": row["claim"]}
            )
    wait_until(lambda: client.claims() == [])


def registered(kubelet: DraKubelet) -> None:
    def looks() -> bool:
        kubelet.look()
        return bool(kubelet.drivers)

    wait_until(looks)


def uuids(stack: Stack) -> list[str]:
    return [row["uuid"] for row in Client(stack.socket).cards()]


def claim_of(cluster: StandInApiServer, *parts: AllocatedPart, **parameters: str) -> ScheduledClaim:
    return ScheduledClaim(cluster, "train", NODE, parts, parameters=parameters)


def prepared(kubelet: DraKubelet, claim: ScheduledClaim) -> list[dict[str, str]]:
    """Return the CDI devices of the claim, as CRI has them."""
    answer = kubelet.prepare(claim.reference)[claim.uid]
    assert answer["error"] == ""
    names = {name for device in answer["devices"] for name in device["cdi_device_ids"]}
    return [{"name": name} for name in sorted(names)]


def conditions(cluster: StandInApiServer, claim: ScheduledClaim) -> list[tuple[str, str]]:
    """Return what the claim's status says of its devices."""
    path = CLAIMS.format(namespace=claim.namespace, name=claim.name)
    devices = cluster.objects[path]["status"].get("devices", [])
    return [(each["type"], each["status"]) for device in devices for each in device["conditions"]]


def run(pod: PodSandbox, name: str, devices: list[dict[str, str]]) -> PodContainer:
    return pod.run(name, CDI_devices=devices)


def test_the_cards_are_published_once_the_kubelet_knows_the_driver(
    stack: Stack, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    assert kubelet.driver.name == "gpu.gpushare.io"

    def devices() -> list[str]:
        slices = [body for path, body in cluster.objects.items() if path.startswith(SLICES)]
        return [device["name"] for body in slices for device in body["spec"]["devices"]]

    wait_until(lambda: len(devices()) == len(uuids(stack)))


def test_a_pod_has_what_its_claim_was_allocated(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    claim = claim_of(cluster, AllocatedPart(uuids(node.stack)[0]))
    with node.pod() as pod:
        claim.reserve(pod.uid)
        container = run(pod, "train", prepared(kubelet, claim))
        assert_slice(container.probe(*probing(4 * GIB)).said, 4 * GIB)
        assert allocated(node.stack) == {container.full_name: 4 * GIB}
    assert kubelet.unprepare(claim.reference) == {claim.uid: {"error": ""}}


def test_a_claim_says_the_card_and_how_it_is_shared(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    second = uuids(node.stack)[1]
    claim = claim_of(cluster, AllocatedPart(second), policy="fixed-share")
    with node.pod() as pod:
        claim.reserve(pod.uid)
        run(pod, "train", prepared(kubelet, claim))
        [row] = Client(node.stack.socket).tenants()
        [card] = row["cards"]
        assert (card["uuid"], card["quota_bytes"], card["cores"]) == (second, 4 * GIB, 40)
        assert row["policy"] == "fixed-share"
        wait_until(lambda: conditions(cluster, claim) == [("Ready", "True")])


def test_a_claim_that_was_prepared_twice_is_prepared_once(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    claim = claim_of(cluster, AllocatedPart(uuids(node.stack)[0]))
    claim.reserve("pod-1")
    assert prepared(kubelet, claim) == prepared(kubelet, claim)
    assert [row["claim"] for row in Client(node.stack.socket).claims()] == [claim.uid]
    kubelet.unprepare(claim.reference)


def test_one_claim_of_two_cards(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    first, second = uuids(node.stack)
    parts = AllocatedPart(first, request="one"), AllocatedPart(second, request="two")
    claim = claim_of(cluster, *parts)
    with node.pod() as pod:
        claim.reserve(pod.uid)
        run(pod, "train", prepared(kubelet, claim))
        [row] = Client(node.stack.socket).tenants()
        assert {card["uuid"] for card in row["cards"]} == {first, second}


def test_a_pod_that_joins_a_prepared_claim_shares_it(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    """The kubelet does not tell the driver: gpushare-node follows the claim."""
    claim = claim_of(cluster, AllocatedPart(uuids(node.stack)[0]))
    with node.pod() as first, node.pod() as second:
        claim.reserve(first.uid)
        devices = prepared(kubelet, claim)
        client = Client(node.stack.socket)
        claim.reserve(first.uid, second.uid)
        wait_until(lambda: len(client.claims()[0]["pods"]) == 2)
        run(second, "serve", devices)
        assert sum(allocated(node.stack).values()) <= 4 * GIB


def test_a_pod_that_the_claim_is_not_reserved_for_is_refused(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    claim = claim_of(cluster, AllocatedPart(uuids(node.stack)[0]))
    with node.pod() as pod:
        claim.reserve("another-pod")
        container = pod.create("train", CDI_devices=prepared(kubelet, claim))
        with pytest.raises(CriError, match="gpushare"):
            container.start()


def test_a_claim_that_does_not_fit_is_refused_at_prepare(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet
) -> None:
    claim = claim_of(cluster, AllocatedPart(uuids(node.stack)[0], memory="900Gi"))
    claim.reserve("pod-1")
    assert kubelet.prepare(claim.reference)[claim.uid]["error"]
    wait_until(lambda: conditions(cluster, claim) == [("Ready", "False")])
    assert Client(node.stack.socket).claims() == []


def test_claims_outlive_both_processes(
    node: CriNode, cluster: StandInApiServer, kubelet: DraKubelet, agent: NodeAgent
) -> None:
    claim = claim_of(cluster, AllocatedPart(uuids(node.stack)[0]))
    with node.pod() as pod:
        claim.reserve(pod.uid)
        devices = prepared(kubelet, claim)
        assert agent.process is not None
        agent.process.process.kill()
        agent.process.process.wait()
        assert node.stack.daemon is not None
        node.stack.daemon.stop()
        node.stack.start_daemon()
        container = run(pod, "train", devices)
        assert allocated(node.stack) == {container.full_name: 4 * GIB}
        kubelet.forget()
        agent.start()
        claim.reserve(pod.uid, "pod-2")
        client = Client(node.stack.socket)
        wait_until(lambda: len(client.claims()[0]["pods"]) == 2)
        wait_until(lambda: answers(kubelet, claim))


def answers(kubelet: DraKubelet, claim: ScheduledClaim) -> bool:
    """Whether the driver that starts is registered and prepares again what is prepared."""
    try:
        kubelet.look()
        return not kubelet.prepare(claim.reference)[claim.uid]["error"]
    except RuntimeError:
        return False


def test_an_end_removes_the_sockets(stack: Stack, cluster: StandInApiServer) -> None:
    kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
    with NodeAgent(stack, "--node", "other", "--kubeconfig", str(kubeconfig)) as own:
        program = own.start()
        wait_until(lambda: len(sockets(own.folder)) == 2)
        program.stop()
        assert program.process.wait() == 0
        assert sockets(own.folder) == []


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]


def test_without_credentials_it_says_what_is_missing(stack: Stack) -> None:
    with NodeAgent(stack, "--kubeconfig", "/nonexistent") as own:
        program = own.start()
        assert program.process.wait() == 1
        assert "/nonexistent" in own.log()


def test_another_mode_is_followed() -> None:
    with Stack(cards=1) as own, StandInApiServer().running() as cluster:
        set_mode(own, "plugin")
        own.start_daemon()
        kubeconfig = write_kubeconfig(own.root / "kubeconfig", cluster)
        with NodeAgent(own, "--node", NODE, "--kubeconfig", str(kubeconfig)) as made:
            program = made.start()
            with StandInKubelet(made.folder) as kubelet:
                wait_until(lambda: kubelet.allocatable("gpushare.io/memory-gib") > 0)
                text = own.config.read_text().replace("mode: plugin", "mode: dra")
                own.config.write_text(text)
                Client(own.socket).reload()
                wait_until(lambda: kubelet.capacity("gpushare.io/memory-gib") == 0)
                wait_until(lambda: len(sockets(made.folder / "plugins_registry")) == 1)
            assert program.process.poll() is None, made.log()
