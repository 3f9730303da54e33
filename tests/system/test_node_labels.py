# SPDX-License-Identifier: Apache-2.0
"""Labels of a node configure its gpushared through gpushare-node, and both may be started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.bundle import Bundle
from tests.stack.node_agent import NodeAgent, write_kubeconfig

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


@pytest.fixture(autouse=True)
def agent(own: Stack, cluster: StandInApiServer) -> Iterator[NodeAgent]:
    kubeconfig = write_kubeconfig(own.root / "kubeconfig", cluster)
    with NodeAgent(own, "--kubeconfig", str(kubeconfig), "--node", "n") as made:
        made.start()
        yield made


def put(cluster: StandInApiServer, **labels: str) -> None:
    """Set the labels of the node, and leave those that gpushare-node writes to it."""
    names = {"qgpu": QGPU, "ack": ACK}
    cluster.put(NODE, {"metadata": {"labels": {names[key]: text for key, text in labels.items()}}})


def settings(own: Stack) -> dict[str, str]:
    found = own.client.status()["node_settings"]
    return {key: setting["value"] for key, setting in found.items()}


def new_policy(own: Stack) -> str:
    bundle = Bundle(own, quota={"memory": "1GiB", "cores": "10"})
    with bundle.started():
        return bundle.tenant["cards"][0]["policy"]


def test_what_a_label_set_outlives_both_programs(
    own: Stack, cluster: StandInApiServer, agent: NodeAgent
) -> None:
    put(cluster, qgpu="be", ack="default")
    wait_until(lambda: settings(own) == {POLICY: "best-effort", MODE: "exclusive"})
    agent.stop()
    own.end_daemon(signal.SIGTERM)
    own.start_daemon()
    assert settings(own) == {POLICY: "best-effort", MODE: "exclusive"}
    shown = own.gpushare("config", "show").stdout
    assert f"node label {QGPU}" in shown
    put(cluster, qgpu="be")  # while gpushare-node is away
    agent.start()
    wait_until(lambda: settings(own) == {POLICY: "best-effort"})
    assert new_policy(own) == "best-effort"


def test_the_mode_of_the_node_is_the_one_that_its_label_wants(
    own: Stack, cluster: StandInApiServer
) -> None:
    mode = "gpushare.io/mode"
    with Bundle(own, quota={"memory": "1GiB"}).started() as tenant:
        cluster.put(NODE, {"metadata": {"labels": {"gpushare.io/wanted-mode": "plugin"}}})
        wait_until(lambda: own.client.status()["kubernetes_mode"] == "plugin")
        wait_until(lambda: cluster.objects[NODE]["metadata"]["labels"].get(mode) == "plugin")
        assert tenant.ask("info")["total"] == 1 << 30
