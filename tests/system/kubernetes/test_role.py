# SPDX-License-Identifier: Apache-2.0
"""The manifests that are shipped and shown grant no more than is used."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import pytest

from gpushare.kubernetes.api.claims import (
    CLAIMS,
    ClaimReader,
    PreparedClaims,
)
from gpushare.kubernetes.api.events import EventRecorder, KubernetesEvent, PodContainer
from gpushare.kubernetes.api.labels import NODES, NodeLabels
from gpushare.kubernetes.api.server import ApiServer, WatchedObjects, path_of
from gpushare.kubernetes.api.slices import SLICES, SlicePublisher
from gpushare.protocol.kubernetes import DRIVER
from tests.stack.api_server import StandInApiServer
from tests.system.waiting import wait_until
from tests.unit.kubernetes.made import GIB, card, node
from tests.unit.kubernetes.test_claims import body as claim_body
from tests.unit.kubernetes.test_manifests import SHIPPED, of

pytestmark = pytest.mark.gate

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def test_the_role_grants_what_is_used_and_no_more(
    api: ApiServer, cluster: StandInApiServer
) -> None:
    claim_path = path_of(CLAIMS, "train", "team-a")
    cluster.put("/api/v1/nodes/n", {})
    cluster.put(claim_path, claim_body())
    everything(api, cluster)
    assert {verb_and_resource(one) for one in cluster.requests} == granted()


def everything(api: ApiServer, cluster: StandInApiServer) -> None:
    """Do all that gpushare-node does with the API server."""
    labels, publisher = NodeLabels(api, "n"), SlicePublisher(api, "n")
    labels.verify()
    labels.write(node())
    publisher.write(node(card(0)))
    publisher.write(node(card(0, schedulable_bytes=GIB)))
    query = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName=n"}
    for path, selected in ((SLICES, query), (NODES, {"fieldSelector": "metadata.name=n"})):
        with contextlib.closing(WatchedObjects(api, path, selected)) as watched:
            watched.start()
            wait_until(lambda: cluster.watchers == 1)
        wait_until(lambda: cluster.watchers == 0)
    publisher.remove()
    now = [0.0]
    recorder = EventRecorder(api, "n", lambda: now[0])
    about = PodContainer("team-a", "p", "u", "c")
    for _ in range(2):
        recorder.record(KubernetesEvent(about, "GpuFrozen", "Warning", "m", 0.0, "1"))
    now[0] = 1000.0
    recorder.flush()
    reader = ClaimReader(api)
    claim = reader.read("team-a", "train")
    with contextlib.closing(PreparedClaims(api, lambda _claim: None)) as prepared:
        prepared.follow(claim)
        wait_until(lambda: cluster.watchers == 1)
        wait_until(lambda: any("PUT" in one and CLAIMS[-8:] in one for one in cluster.requests))


def verb_and_resource(request: str) -> tuple[str, str]:
    """Return the verb and the resource by which RBAC knows a request."""
    method, _, target = request.partition(" ")
    split = urlsplit(target)
    parts = split.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    rest = rest[2:] if rest[0] == "namespaces" else rest
    verb = _VERBS.get(method) or ("get" if len(rest) > 1 else "list")
    if "watch=1" in split.query:
        verb = "watch"
    return verb, f"{group}/{'/'.join([rest[0], *rest[2:]])}"


def granted() -> set[tuple[str, str]]:
    """Return what the role grants, without the check of single fields that 1.36 adds to it."""
    found = rules_of("gpushare-node")
    of_fields = {one for one in found if one[1] == "resource.k8s.io/resourceclaims/driver"}
    assert of_fields == {("associated-node:update", "resource.k8s.io/resourceclaims/driver")}
    return found - of_fields


def rules_of(name: str) -> set[tuple[str, str]]:
    """Return the verbs and resources of a role that is shipped."""
    (role,) = (one for one in of("ClusterRole", SHIPPED) if one["metadata"]["name"] == name)
    return {
        (verb, f"{group}/{resource}")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
