# SPDX-License-Identifier: Apache-2.0
"""gpushare-node as a device plugin: what it answers a kubelet goes to containerd, as a pod's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.distribution import Distribution
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.service import PluginError
from tests.stack.node_agent import NodeAgent, set_mode, write_kubeconfig
from tests.system.waiting import wait_until

from .cri import CriError
from .node import CriNode
from .slices import GIB, allocated, assert_slice, probing

RESOURCE = "gpushare.io/memory-gib"
NODE = "/api/v1/nodes/n"


@pytest.fixture(scope="module")
def stack(distribution: Distribution) -> Iterator[Stack]:
    """A node of two cards in plugin mode."""
    with Stack(distribution=distribution, cards=2) as made:
        set_mode(made, "plugin")
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def node(stack: Stack) -> Iterator[CriNode]:
    with CriNode(stack) as made:
        yield made


@pytest.fixture(scope="module")
def agent(stack: Stack) -> Iterator[NodeAgent]:
    with NodeAgent(stack) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def running(agent: NodeAgent) -> Iterator[StandInKubelet]:
    with StandInKubelet(agent.folder) as made:
        yield made


@pytest.fixture
def kubelet(running: StandInKubelet, agent: NodeAgent, stack: Stack) -> Iterator[StandInKubelet]:
    """A kubelet that knows the plugin, and after the test nothing is allocated."""
    whole = 2 * card_gib(stack)
    wait_until(lambda: running.allocatable(RESOURCE) == whole)
    assert agent.process is not None
    assert agent.process.process.poll() is None, agent.log()
    yield running
    running.used = {}
    wait_until(lambda: not Client(stack.socket).tenants())


def card_gib(stack: Stack) -> int:
    """Return the GiB of one card that containers may have."""
    row = Client(stack.socket).cards()[0]
    return (row["memory_bytes"] - row["system_reserved_bytes"]) // GIB


def test_a_container_gets_the_memory_that_the_kubelet_counted(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    given = kubelet.admit(RESOURCE, 4)
    with node.pod() as pod:
        container = pod.run("train", mounts=given.mounts())
        assert_slice(container.probe(*probing(4 * GIB)).said, 4 * GIB)
        assert allocated(node.stack) == {container.full_name: 4 * GIB}


def test_a_pods_own_annotations_shrink_and_refine_what_the_kubelet_gave(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    given = kubelet.admit(RESOURCE, 4)
    with node.pod({"container.train.memory": "2GiB", "container.train.cores": "30"}) as pod:
        container = pod.run("train", mounts=given.mounts())
        [row] = Client(node.stack.socket).tenants()
        assert row["name"] == container.full_name
        [card] = row["cards"]
        assert (card["quota_bytes"], card["cores"]) == (2 * GIB, 30)


def test_an_annotation_never_enlarges_it(node: CriNode, kubelet: StandInKubelet) -> None:
    given = kubelet.admit(RESOURCE, 4)
    with node.pod({"container.train.memory": "8GiB"}) as pod:
        container = pod.run("train", mounts=given.mounts())
        assert allocated(node.stack) == {container.full_name: 4 * GIB}


def test_a_container_is_on_the_card_of_its_ids(node: CriNode, kubelet: StandInKubelet) -> None:
    """Two that the scheduler put on one card are on it, and a third does not fit there."""
    half = card_gib(node.stack) // 2
    first, second, third = (kubelet.admit(RESOURCE, half) for _ in range(3))
    with node.pod() as pod:
        for name, given in (("one", first), ("two", second), ("three", third)):
            pod.run(name, mounts=given.mounts())
        cards = {row["name"]: row["cards"] for row in Client(node.stack.socket).tenants()}
        for name, given in (("one", first), ("two", second), ("three", third)):
            [card] = cards[f"ai/{pod.name}/{name}"]
            assert {device.partition(".")[0] for device in given.devices} == {card["uuid"]}
    assert len(first.devices | second.devices | third.devices) == 3 * half


def test_a_container_larger_than_a_card_gets_the_same_of_two(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    both = 2 * (card_gib(node.stack) - 1)
    given = kubelet.admit(RESOURCE, both)
    with node.pod() as pod:
        container = pod.run("train", mounts=given.mounts())
        [row] = Client(node.stack.socket).tenants()
        quotas = [card["quota_bytes"] for card in row["cards"]]
        assert quotas == [both // 2 * GIB, both // 2 * GIB]
        mounted = container.execute("/bin/busybox", "ls", "/run")
        assert "gpushare" not in mounted.stdout


def test_a_full_node_is_the_kubelets_to_refuse_and_never_gpushareds(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    whole = card_gib(node.stack)
    first, _second = kubelet.admit(RESOURCE, whole), kubelet.admit(RESOURCE, whole)
    with pytest.raises(PluginError, match="Insufficient"):
        kubelet.admit(RESOURCE, 1)
    with node.pod() as pod:
        pod.run("train", mounts=first.mounts())
    wait_until(lambda: not Client(node.stack.socket).tenants())
    first.release()
    again = kubelet.admit(RESOURCE, whole)
    with node.pod() as pod:
        pod.run("train", mounts=again.mounts())


def test_a_card_that_is_cordoned_has_nothing_for_new_pods(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    client, whole = Client(node.stack.socket), card_gib(node.stack)
    client.cordon("0", "repair")
    try:
        wait_until(lambda: kubelet.allocatable(RESOURCE) == whole)
        assert kubelet.capacity(RESOURCE) == 2 * whole
        uuid = client.cards()[1]["uuid"]
        given = kubelet.admit(RESOURCE, 4)
        assert {device.partition(".")[0] for device in given.devices} == {uuid}
    finally:
        client.uncordon("0")
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 2 * whole)


def test_a_kubelet_that_restarts_finds_the_plugin_again(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    given = kubelet.admit(RESOURCE, 4)
    with node.pod() as pod:
        container = pod.run("train", mounts=given.mounts())
        kubelet.restart()
        wait_until(lambda: kubelet.allocatable(RESOURCE) > 0)
        container.remove()
        # The kubelet's checkpoint still has its ids; the restarted container has the same part.
        again = pod.run("train", mounts=given.mounts())
        assert allocated(node.stack) == {again.full_name: 4 * GIB}


def test_a_gpushared_that_restarts_is_followed(
    node: CriNode, kubelet: StandInKubelet, agent: NodeAgent
) -> None:
    lists = kubelet.endpoints[RESOURCE].lists
    assert node.stack.daemon is not None
    node.stack.daemon.stop()
    with pytest.raises(PluginError, match="gpushared"):
        kubelet.admit(RESOURCE, 4)
    node.stack.start_daemon()
    given = kubelet.admit(RESOURCE, 4)
    with node.pod() as pod:
        container = pod.run("train", mounts=given.mounts())
        assert allocated(node.stack) == {container.full_name: 4 * GIB}
    assert len(kubelet.registrations) <= 2
    assert kubelet.endpoints[RESOURCE].lists == lists
    assert agent.process is not None
    assert agent.process.process.poll() is None


def test_gpushare_node_that_is_killed_is_found_again(
    node: CriNode, kubelet: StandInKubelet, agent: NodeAgent
) -> None:
    assert agent.process is not None
    agent.process.process.kill()
    agent.process.process.wait()
    wait_until(lambda: kubelet.capacity(RESOURCE) == 0)
    agent.start()
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 2 * card_gib(node.stack))
    assert kubelet.admit(RESOURCE, 4).mounts()


def test_an_end_leaves_no_socket(stack: Stack) -> None:
    with NodeAgent(stack) as own, StandInKubelet(own.folder) as kubelet:
        program = own.start()
        wait_until(lambda: kubelet.allocatable(RESOURCE) > 0)
        program.stop()
        assert program.process.wait() == 0
        assert [path.name for path in kubelet.plugins.iterdir()] == ["kubelet.sock"]
        wait_until(lambda: kubelet.capacity(RESOURCE) == 0)


def test_the_node_has_the_label_of_its_mode(stack: Stack) -> None:
    with StandInApiServer().running() as cluster:
        cluster.put(NODE, {"metadata": {"name": "n"}})
        kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
        with NodeAgent(stack, "--node", "n", "--kubeconfig", str(kubeconfig)) as own:
            program = own.start()
            wait_until(lambda: "labels" in cluster.objects[NODE]["metadata"])
            assert cluster.objects[NODE]["metadata"]["labels"]["gpushare.io/mode"] == "plugin"
            program.stop()
            assert program.process.wait() == 0


def test_without_a_kubelet_it_ends_and_is_started_again(stack: Stack) -> None:
    with NodeAgent(stack, "--kubelet-dir", "/nonexistent") as own:
        program = own.start()
        assert program.process.wait() == 1
        assert "there is no /nonexistent: start the kubelet first" in own.log()


def test_a_unit_that_makes_too_long_a_list_is_refused_at_start(stack: Stack) -> None:
    with NodeAgent(stack, "--resource", "example.com/mib", "--unit", "1MiB") as own:
        program = own.start()
        assert program.process.wait() == 1
        assert "Use --unit" in own.log()


def test_a_pod_that_the_device_plugin_gave_nothing_has_no_gpu(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    """It landed on a node of another mode: the refusal has the fix."""
    assert kubelet.used == {}
    with node.pod({"container.train.memory": "4GiB"}) as pod:
        container = pod.create("train")
        with pytest.raises(CriError, match=r"gpushare\.io/mode"):
            container.start()


def test_a_mount_of_a_folder_that_gpushared_did_not_make_gives_nothing(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    given = kubelet.admit(RESOURCE, 4)
    forged = node.root / "forged"
    forged.mkdir(exist_ok=True)
    mounts = [{**given.mounts()[0], "host_path": str(forged)}]
    with node.pod() as pod:
        container = pod.create("train", mounts=mounts)
        try:
            container.start()
        except CriError:
            return
        assert allocated(node.stack) == {}


def test_ps_and_inspect_name_the_device_plugin(node: CriNode, kubelet: StandInKubelet) -> None:
    given = kubelet.admit(RESOURCE, 4)
    with node.pod() as pod:
        container = pod.run("train", mounts=given.mounts())
        shown = subprocess.run(
            [*node.stack.cli, "inspect", container.full_name, "--json"],
            check=True,
            capture_output=True,
            env=node.stack.environment,
        )
        row = json.loads(shown.stdout)
        assert "device plugin" in json.dumps(row)
