# SPDX-License-Identifier: Apache-2.0
"""The token of gpushare-node changes what is of its own node, and of gpushare."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpushare.kubernetes.api.labels import NAMES
from gpushare.protocol.kubernetes import DRIVER
from tools.admission import Object, Request, decide
from tools.check.command import ROOT

pytestmark = pytest.mark.needs("admission")

POLICY = next(
    yaml.safe_load_all((ROOT / "configs/kubernetes/dra/nodeadmissionpolicy.yaml").read_text())
)
CLAIM = {"authentication.kubernetes.io/node-name": ["a"]}
USER = {"username": "system:serviceaccount:gpushare-system:gpushare-node", "extra": CLAIM}
TAINT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
OWN_TAINT = {"key": "gpushare.io/no-cards", "effect": "NoSchedule"}


def node(name: str = "a", metadata: Object | None = None, **spec: Any) -> Object:
    kept = {"labels": {"zone": "z"}, "annotations": {"csi": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **kept, **(metadata or {})},
        "spec": {"taints": [TAINT], **spec},
    }


def resource_slice(of: str, driver: str = DRIVER) -> Object:
    pool = {"name": of, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{of}-slice"},
        "spec": {"driver": driver, "nodeName": of, "pool": pool},
    }


def update(new: Object, old: Object, user: Object = USER) -> Request:
    return Request(new, "UPDATE", old, user)


OURS = {"zone": "z", **dict.fromkeys(NAMES, "1")}
ALLOWED = [
    update(node(), node()),
    update(node(metadata={"labels": OURS}), node()),
    update(node(), node(metadata={"labels": OURS})),
    update(node(metadata={"annotations": {"csi": "1", "gpushare.io/x": "1"}}), node()),
    update(node(taints=[TAINT, OWN_TAINT]), node()),
    update(node(), node(taints=[TAINT, OWN_TAINT])),
    Request(resource_slice("a"), "CREATE", None, USER),
    update(resource_slice("a"), resource_slice("a")),
    Request(None, "DELETE", resource_slice("a"), USER),
    # Whoever else it is, and a token of a Kubernetes before 1.32.
    update(node(unschedulable=True), node(), {**USER, "username": "system:node:b"}),
    update(node("b", unschedulable=True), node("b"), {**USER, "extra": {}}),
    update(node("b", unschedulable=True), node("b"), {"username": USER["username"]}),
]
REFUSED = [
    update(node("b", {"labels": OURS}), node("b")),
    update(node(metadata={"labels": {"zone": "y"}}), node()),
    update(node(metadata={"labels": {}}), node()),
    update(node(metadata={"labels": {"zone": "z", "pool": "gpu"}}), node()),
    update(node(metadata={"annotations": {}}), node()),
    update(node(metadata={"finalizers": ["a.b/c"]}), node()),
    update(node(metadata={"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "u"}]}), node()),
    update(node(unschedulable=True), node()),
    update(node(), node(unschedulable=True)),
    update(node(providerID="aws://b"), node()),
    update(node(taints=[]), node()),
    update(node(taints=[TAINT, {"key": "a/b", "effect": "NoExecute"}]), node()),
    Request(resource_slice("b"), "CREATE", None, USER),
    Request(resource_slice("a", "gpu.nvidia.com"), "CREATE", None, USER),
    update(resource_slice("a"), resource_slice("b")),
    update(resource_slice("b"), resource_slice("a")),
    Request(None, "DELETE", resource_slice("b"), USER),
    Request(None, "DELETE", resource_slice("a", "gpu.nvidia.com"), USER),
]


def test_its_token_changes_nothing_of_other_nodes_and_nothing_of_others_on_its_own() -> None:
    decisions = decide([POLICY], [*ALLOWED, *REFUSED])
    allowed, refused = decisions[: len(ALLOWED)], decisions[len(ALLOWED) :]
    wrong = [
        (request, one.refused) for request, one in zip(ALLOWED, allowed, strict=True) if one.refused
    ]
    assert wrong == []
    for request, one in zip(REFUSED, refused, strict=True):
        assert "gpushare-node may only" in one.refused, request
