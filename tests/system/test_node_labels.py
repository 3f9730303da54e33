# SPDX-License-Identifier: Apache-2.0
"""Labels of a node configure its gpushared through gpushare-node, and both may be started again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare.client import Client
from gpushare.kubernetes.api.event_recorder import EVENTS
from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.bundle import Bundle
from tests.stack.node_agent import NodeAgent, write_kubeconfig
from tests.stack.program import ServiceProcess

from .waiting import wait_until

NODE = "/api/v1/nodes/n"
QGPU = "tke.cloud.tencent.com/qgpu-schedule-policy"
ACK = "ack.node.gpu.schedule"
POLICY = "defaults.policy"
MODE = "cards.allowed_mode"


@pytest.fixture
def cluster() -> Iterator[StandInApiServer]:
    with StandInApiServer(token="t").running() as server:
        server.put(NODE, {})
        yield server


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as made:
        made.start_daemon()
        yield made


@pytest.fixture(autouse=True)
def agent(stack: Stack, cluster: StandInApiServer) -> Iterator[NodeAgent]:
    kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
    with NodeAgent(stack, "--kubeconfig", str(kubeconfig), "--node", "n") as made:
        made.start()
        yield made


def put(cluster: StandInApiServer, **labels: str) -> None:
    """Set the labels of the node, and leave those that gpushare-node writes to it."""
    names = {"qgpu": QGPU, "ack": ACK, "policy": "gpushare.io/wanted-policy"}
    cluster.put(NODE, {"metadata": {"labels": {names[key]: text for key, text in labels.items()}}})


def settings(stack: Stack) -> dict[str, str]:
    found = Client(stack.socket).status()["node_settings"]
    return {key: setting["value"] for key, setting in found.items()}


def warnings(cluster: StandInApiServer) -> list[str]:
    return [one["message"] for one in cluster.of(EVENTS) if one["type"] == "Warning"]


@contextmanager
def container(stack: Stack) -> Iterator[str]:
    """Run a container with cores; yield its ID."""
    bundle = Bundle(stack, quota={"memory": "1GiB", "cores": "10"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        yield bundle.id


def policy_of(stack: Stack, identity: str) -> str:
    [row] = [row for row in Client(stack.socket).tenants() if row["id"] == identity]
    return row["cards"][0]["policy"]


def new_policy(stack: Stack) -> str:
    with container(stack) as identity:
        return policy_of(stack, identity)


def restart_daemon(stack: Stack) -> None:
    daemon: ServiceProcess | None = stack.daemon
    assert daemon is not None
    daemon.stop()
    stack.start_daemon()


def test_a_label_sets_the_policy_of_new_containers_until_it_is_removed(
    stack: Stack, cluster: StandInApiServer
) -> None:
    with container(stack) as running:
        put(cluster, qgpu="bs")
        wait_until(lambda: settings(stack) == {POLICY: "burst-share"})
        assert new_policy(stack) == "burst-share"
        assert policy_of(stack, running) == "fixed-share"
        put(cluster)
        wait_until(lambda: not settings(stack))
        assert new_policy(stack) == "fixed-share"
    assert not warnings(cluster)


def test_a_wrong_label_is_an_event_on_the_node_and_changes_nothing(
    stack: Stack, cluster: StandInApiServer
) -> None:
    put(cluster, qgpu="bs")
    wait_until(lambda: settings(stack) == {POLICY: "burst-share"})
    put(cluster, qgpu="burst")
    wait_until(lambda: bool(warnings(cluster)))
    [event] = [one for one in cluster.of(EVENTS) if one["type"] == "Warning"]
    assert event["involvedObject"]["kind"] == "Node"
    assert event["message"].startswith(f"Tencent qGPU: node label {QGPU}=burst: not a valid value.")
    assert new_policy(stack) == "burst-share"
    put(cluster, qgpu="burst", policy="best-effort")
    wait_until(lambda: settings(stack) == {POLICY: "best-effort"})
    assert len(warnings(cluster)) == 1


def test_what_a_label_set_outlives_both_programs(
    stack: Stack, cluster: StandInApiServer, agent: NodeAgent
) -> None:
    put(cluster, qgpu="be", ack="default")
    wait_until(lambda: settings(stack) == {POLICY: "best-effort", MODE: "exclusive"})
    agent.stop()
    restart_daemon(stack)
    assert settings(stack) == {POLICY: "best-effort", MODE: "exclusive"}
    shown = subprocess.run(
        [*stack.cli, "config", "show"],
        env=stack.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"node label {QGPU}" in shown
    put(cluster, qgpu="be")  # while gpushare-node is away
    agent.start()
    wait_until(lambda: settings(stack) == {POLICY: "best-effort"})
    assert new_policy(stack) == "best-effort"


def test_the_mode_of_the_node_is_the_one_that_its_label_wants(
    stack: Stack, cluster: StandInApiServer
) -> None:
    mode = "gpushare.io/mode"
    with container(stack) as running:
        cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/wanted-mode": "plugin"}}})
        wait_until(lambda: Client(stack.socket).status()["kubernetes_mode"] == "plugin")
        wait_until(lambda: cluster.objects[NODE]["metadata"]["labels"].get(mode) == "plugin")
        assert policy_of(stack, running) == "fixed-share"
