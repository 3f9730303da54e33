# SPDX-License-Identifier: Apache-2.0
"""The chart and `kubectl gpushare`: its rights are what it reads, and its exporter is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stack.api_server import StandInApiServer
from tests.stack.kubectl import NAMESPACE, Kubectl, put_exporter, put_node

from .test_chart import of, rendered

pytestmark = pytest.mark.needs("helm", "kubectl")

ENABLED = {"enabled": True}
EXPORTER = f"/api/v1/namespaces/{NAMESPACE}/pods/gpushare-exporter-gpu-1"


def named(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in of(kind, objects) if one["metadata"]["name"] == "gpushare-view")
    return found


def granted(role: dict[str, Any]) -> set[tuple[str, ...]]:
    return {
        (verb, group, resource, *rule.get("resourceNames", []))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def right(request: str) -> tuple[str, ...]:
    """Return what an API server would ask its authorizer for `GET /api/v1/...`."""
    verb, _, path = request.partition(" ")
    assert verb == "GET"
    parts = path.partition("?")[0].strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces":
        assert rest[1] == NAMESPACE
        rest = rest[2:]
    if len(rest) == 1:
        return "list", group, rest[0]
    return ("get", group, "pods/proxy") if rest[2:] else ("get", group, rest[0], rest[1])


@pytest.fixture
def kubectl(tmp_path: Path, cluster: StandInApiServer) -> Kubectl:
    put_node(cluster, "gpu-1", "dra")
    return Kubectl(tmp_path, cluster)


def test_the_roles_grant_what_the_plugin_reads_and_no_more(
    kubectl: Kubectl, cluster: StandInApiServer
) -> None:
    put_exporter(cluster, "gpu-1", token="x" * 16)  # and nothing answers: all is read
    for command in ("ls", "ps"):
        kubectl.run("gpushare", command)
    objects = rendered({"viewRole": ENABLED})
    of_cluster, of_namespace = named("ClusterRole", objects), named("Role", objects)
    assert of_namespace["metadata"]["namespace"] == NAMESPACE
    assert granted(of_cluster) | granted(of_namespace) == set(map(right, cluster.requests))
    assert {verb for verb, *_ in granted(of_cluster)} == {"list"}


def test_the_exporters_pod_of_the_chart_is_found(
    kubectl: Kubectl, cluster: StandInApiServer
) -> None:
    objects = rendered({"metrics": {"enabled": True, "tokenSecret": "of-my-own"}})
    (template,) = (
        one["spec"]["template"]
        for one in of("DaemonSet", objects)
        if one["metadata"]["name"] == "gpushare-exporter"
    )
    spec = {**template["spec"], "nodeName": "gpu-1"}
    cluster.put(
        EXPORTER,
        {"metadata": template["metadata"], "spec": spec, "status": {"phase": "Running"}},
    )
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/of-my-own"
    cluster.put(secret, {"data": {"token": "eHh4eHh4eHh4eHh4eHh4eHh4"}})
    kubectl.run("gpushare", "ls")
    assert f"GET {secret}" in cluster.requests
    assert f"GET {EXPORTER}:10418/proxy/rows" in cluster.requests
