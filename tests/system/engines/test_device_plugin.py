# SPDX-License-Identifier: Apache-2.0
"""gpushare-node as a device plugin: what it answers a kubelet goes to containerd, as a pod's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.protocol.kubernetes import ALLOCATION_MOUNT
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.service import PluginError
from tests.stack.node_agent import NodeAgent
from tests.system.waiting import wait_until

from .cri import CriError
from .node import CriNode
from .slices import GIB, allocated, assert_slice, probing

RESOURCE = "gpushare.io/memory-gib"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A node of two cards in plugin mode."""
    with Stack(distribution=HOST, cards=2) as made:
        made.configure(kubernetes={"mode": "plugin"})
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
    wait_until(lambda: running.allocatable(RESOURCE) == 2 * card_gib(stack))
    assert agent.process is not None
    assert agent.process.process.poll() is None, agent.log()
    yield running
    running.used, running.containers = {}, []
    wait_until(lambda: not stack.client.tenants())


def card_gib(stack: Stack) -> int:
    """Return the GiB of one card that containers may have."""
    row = stack.client.cards()[0]
    return (row["memory_bytes"] - row["system_reserved_bytes"]) // GIB


@pytest.mark.gate
def test_a_container_gets_what_the_kubelet_counted_and_its_annotations_refine(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    given = kubelet.admit(RESOURCE, 4)
    with node.pod({"container.less.memory": "2GiB", "container.less.cores": "30"}) as pod:
        container = pod.run("train", mounts=given.mounts())
        assert_slice(container.probe(*probing(4 * GIB)).said, 4 * GIB)
        assert allocated(node.stack) == {container.full_name: 4 * GIB}
        assert ALLOCATION_MOUNT not in Path(f"/proc/{container.pid()}/mountinfo").read_text()
        container.remove()
        less = pod.run("less", mounts=given.mounts())
        [row] = node.stack.client.tenants()
        assert row["name"] == less.full_name
        [card] = row["cards"]
        assert (card["quota_bytes"], card["cores"]) == (2 * GIB, 30)
        # The one that the kubelet gave nothing landed on a node of another mode: here is the fix.
        none = pod.create("none", annotations={"gpushare.io/memory": "1GiB"})
        with pytest.raises(CriError, match=r"gpushare\.io/mode"):
            none.start()


def test_kubelet_gpushared_and_gpushare_node_may_each_restart(
    node: CriNode, kubelet: StandInKubelet, agent: NodeAgent
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
        lists = kubelet.endpoints[RESOURCE].lists
        assert node.stack.daemon is not None
        node.stack.daemon.stop()
        with pytest.raises(PluginError, match="gpushared"):
            kubelet.admit(RESOURCE, 4)
        node.stack.start_daemon()
        assert kubelet.admit(RESOURCE, 4).mounts()
        assert allocated(node.stack) == {again.full_name: 4 * GIB}
        assert kubelet.endpoints[RESOURCE].lists == lists
    assert agent.process is not None
    agent.process.process.kill()
    agent.process.process.wait()
    wait_until(lambda: kubelet.capacity(RESOURCE) == 0)
    agent.start()
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 2 * card_gib(node.stack))
    assert kubelet.admit(RESOURCE, 4).mounts()


def test_the_folder_of_an_allocation_may_be_gone_and_may_not_be_forged(
    node: CriNode, kubelet: StandInKubelet
) -> None:
    """The kubelet keeps the device plugin's answers, and /run does not survive a reboot."""
    [mount] = kubelet.admit(RESOURCE, 4).mounts()
    Path(mount["host_path"]).rmdir()
    forged = node.root / "forged"
    forged.mkdir()
    with node.pod() as pod:
        pod.run("train", mounts=[mount])
        assert list(allocated(node.stack).values()) == [4 * GIB]
        other = pod.create("other", mounts=[{**mount, "host_path": str(forged)}])
        try:
            other.start()
        except CriError:
            assert other.state() == "CONTAINER_EXITED"
        assert list(allocated(node.stack).values()) == [4 * GIB]
