# SPDX-License-Identifier: Apache-2.0
"""`gpushare-node --templates`, a process, and an API server over real connections."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kubernetes.api.events import EVENTS
from gpushare.kubernetes.templates import PODS, TEMPLATES
from tests.stack.api_server import StandInApiServer
from tests.stack.node_agent import PROGRAM, write_kubeconfig
from tests.stack.program import ServiceProcess
from tests.system.waiting import wait_until

from .test_role import rules_of, verb_and_resource

pytestmark = pytest.mark.gate

A, B = "gpushare-1024mi-10-1", "gpushare-2048mi-10-1"


def put(cluster: StandInApiServer, name: str, template: str, namespace: str = "ai") -> None:
    labels = {"gpushare.io/templates": "wanted"}
    claims = [{"name": "gpushare-0", "resourceClaimTemplateName": template}]
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    cluster.put(path, {"metadata": {"labels": labels}, "spec": {"resourceClaims": claims}})


def templates(cluster: StandInApiServer) -> set[tuple[str, str]]:
    found = [one["metadata"] for one in cluster.of(TEMPLATES)]
    return {(one["namespace"], one["name"]) for one in found}


def watches_of(cluster: StandInApiServer, collection: str) -> list[str]:
    asked = [one for one in cluster.requests if one.startswith(f"GET {collection}?")]
    return [one for one in asked if "watch=1" in one]


@pytest.fixture
def maker(cluster: StandInApiServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    """The process, which watches pods and cards; where there is no gpushared and no gRPC."""
    config = write_kubeconfig(tmp_path / "kubeconfig", cluster)
    hidden = tmp_path / "grpc.py"
    hidden.write_text("raise ImportError('gRPC is not needed')")
    argv = [str(PROGRAM), "--templates", "--kubeconfig", str(config), "--node", "templates-0"]
    env = {"PYTHONPATH": str(tmp_path), "PATH": str(Path(sys.executable).parent)}
    process = ServiceProcess([*argv, "--socket", str(tmp_path / "none")], tmp_path / "log", env)
    process.wait_until(lambda: cluster.watchers == 2)
    yield process
    process.stop()


def test_a_pod_that_comes_gets_its_template_whatever_became_of_the_watch(
    cluster: StandInApiServer, maker: ServiceProcess
) -> None:
    put(cluster, "a", A)
    wait_until(lambda: templates(cluster) == {("ai", A)})
    cluster.end_watches()
    put(cluster, "b", B)
    put(cluster, "c", A, namespace="other")
    wait_until(lambda: templates(cluster) == {("ai", A), ("ai", B), ("other", A)})
    assert maker.process.poll() is None


def test_a_pod_that_has_a_node_is_waited_for_no_more(
    cluster: StandInApiServer, maker: ServiceProcess
) -> None:
    put(cluster, "a", A)
    wait_until(lambda: templates(cluster) == {("ai", A)})
    path = "/api/v1/namespaces/ai/pods/a"
    with cluster._lock:
        pod = cluster.objects[path]
        cluster.put(path, {**pod, "spec": {**pod["spec"], "nodeName": "n"}})
        cluster.remove(f"/apis/resource.k8s.io/v1/namespaces/ai/resourceclaimtemplates/{A}")
    for _ in range(2):  # B is made again for as long as it waits, and A is not
        put(cluster, "b", B)
        wait_until(lambda: ("ai", B) in templates(cluster))
        assert templates(cluster) == {("ai", B)}
        cluster.remove(f"/apis/resource.k8s.io/v1/namespaces/ai/resourceclaimtemplates/{B}")
    assert maker.process.poll() is None


@pytest.mark.usefixtures("maker")
def test_the_role_grants_what_is_used_and_no_more(cluster: StandInApiServer) -> None:
    cluster.fault = lambda method, path: 403 if method == "POST" and "templates" in path else None
    put(cluster, "a", A)
    wait_until(lambda: bool(cluster.of(EVENTS)))
    cluster.fault = lambda *_: None
    put(cluster, "b", A)
    wait_until(lambda: templates(cluster) == {("ai", A)})
    assert {verb_and_resource(one) for one in cluster.requests} == rules_of("gpushare-templates")


def test_sigterm_ends_it_while_the_server_is_slow_to_answer(
    cluster: StandInApiServer, maker: ServiceProcess
) -> None:
    arrived, over = threading.Event(), threading.Event()

    def slow(method: str, _path: str) -> None:
        if method == "POST":
            arrived.set()
            over.wait(60)

    cluster.fault = slow
    put(cluster, "a", A)
    assert arrived.wait(60)
    try:
        maker.process.terminate()
        assert maker.process.wait(60) == 0
    finally:
        over.set()
    assert not maker.log.read_text(), "nor after the time in which the server is to answer"
    [queried] = watches_of(cluster, PODS)
    assert "fieldSelector=spec.nodeName%3D&" in queried
    assert "labelSelector=gpushare.io%2Ftemplates%3Dwanted" in queried
