# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpushare verify`: what it asks a cluster for, and what it makes of the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpushare.kubernetes.cluster.kubectl import Answer, KubectlError
from gpushare.kubernetes.cluster.verify import NEVER, SEEN, ClusterTrial, Finding
from gpushare.protocol.kubernetes import DRIVER, MODES
from tests.stack.api_server import Body
from tests.unit.kubernetes.gpushared import Clock
from tests.unit.kubernetes.made import GIB
from tools.check.command import ROOT

IMAGE = "localhost/gpushare:1"
CLASSES = {"gpushare": "annotations", "gpushare-plugin": "plugin", "gpushare-dra": "dra"}


@dataclass
class TrialCluster:
    """One node with gpushare, as kubectl shows it; the fields say what is wrong with it."""

    mode: str = "plugin"
    is_agent_ready: bool = True
    allocatable: str = "278"
    versions: tuple[str, str] = ("v1.36.2", "containerd://1.7.24")
    has_policies: bool = True
    refuses_wrong: bool = True
    translates: bool = True
    starts: bool = True
    starts_large: bool = False
    quota: int = GIB
    releases: bool = True
    checks: list[Body] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    pods: dict[str, Body] = field(default_factory=dict)
    kept: list[Body] = field(default_factory=list)

    def __call__(self, *words: str, objects: Any = None) -> Answer:
        verb, *rest = words
        answer = getattr(self, f"_{verb}")(*rest, *([] if objects is None else [objects]))
        if isinstance(answer, Answer):
            return answer
        return Answer(0, answer if isinstance(answer, str) else json.dumps(answer), "")

    def _get(self, kind: str, *words: str) -> Any:
        if kind == "nodes":
            return {"items": [self._node()]}
        if kind == "pods":
            return {"items": [self._agent()]}
        if kind == "resourceslices.resource.k8s.io":
            spec = {"driver": DRIVER, "nodeName": "n", "devices": [{}, {}]}
            other = {"driver": "gpu.nvidia.com", "nodeName": "n", "devices": [{}]}
            return {"items": [{"spec": spec}, {"spec": other}]}
        if kind == "pod":
            found = self.pods.get(words[0])
            return found or Answer(1, "", "NotFound")
        assert kind.endswith("admissionpolicies")
        return words[0] if self.has_policies else Answer(1, "", "NotFound")

    def _node(self) -> Body:
        kubelet, engine = self.versions
        information = {"kubeletVersion": kubelet, "containerRuntimeVersion": engine}
        labels = {"gpushare.io/mode": self.mode, "kubernetes.io/hostname": "host-n"}
        allocatable = {"gpushare.io/memory-gib": self.allocatable}
        return {
            "metadata": {"name": "n", "labels": labels if self.mode else {}},
            "status": {"nodeInfo": {**information, "osImage": "D"}, "allocatable": allocatable},
        }

    def _agent(self) -> Body:
        ready = {"type": "Ready", "status": str(self.is_agent_ready)}
        spec = {"nodeName": "n", "containers": [{"image": IMAGE}]}
        return {
            "metadata": {"name": "gpushare-node-x"},
            "spec": spec,
            "status": {"conditions": [ready]},
        }

    def _create(self, kind: str, name: str) -> str:
        assert kind == "namespace"
        self.namespaces.append(name)
        return ""

    def _apply(self, *words: Any) -> Any:
        *options, objects = words
        if "--dry-run=server" in options:
            return self._tried(objects)
        for one in objects["items"]:
            if one["kind"] == "Pod":
                self._add(one)
        return ""

    def _tried(self, pod: Body) -> Any:
        if pod["metadata"].get("annotations", {}).get("gpushare.io/memory") == "4Q":
            refusal = Answer(1, "", "ValidatingAdmissionPolicy 'gpushare-requests' denied it")
            return refusal if self.refuses_wrong and self.has_policies else pod
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"]
        return {"spec": {"runtimeClassName": "gpushare-plugin"} if self.translates else {}}

    def _add(self, pod: Body) -> None:
        name, spec = pod["metadata"]["name"], pod["spec"]
        assert CLASSES[spec["runtimeClassName"]] == self.mode
        assert spec["nodeSelector"] == {"kubernetes.io/hostname": "host-n"}
        assert spec["containers"][0]["image"] == IMAGE
        if name == "large" and not self.starts_large:
            why = {"type": "PodScheduled", "status": "False", "message": "Insufficient memory-gib"}
            pod["status"] = {"phase": "Pending", "conditions": [why]}
        else:
            pod["status"] = {"phase": "Running" if self.starts else "Pending"}
        self.pods[name] = pod

    def _exec(self, *words: str) -> Any:
        if "doctor" in words:
            return self.checks
        rows = self.kept + [one for name, one in self.pods.items() if name != "large"]
        about = {"namespace": self.namespaces[-1]}
        quotas = [{"pod": about, "cards": [{"quota_bytes": self.quota}]} for _ in rows]
        return [*quotas, {"pod": None, "cards": [{"quota_bytes": 7}]}]

    def _delete(self, kind: str, *words: str) -> str:
        if kind == "namespace":
            self.namespaces.remove(words[0])
        else:
            self.kept = [] if self.releases else list(self.pods.values())
            self.pods = {}
        return ""


def findings(cluster: TrialCluster, only: str = "") -> list[Finding]:
    clock = Clock()

    def pause(seconds: float) -> None:
        clock.now += seconds

    return list(ClusterTrial(cluster, "gpushare-system", only, pause, clock).run())


@pytest.mark.parametrize("mode", MODES)
def test_a_cluster_that_is_right_has_no_finding_and_keeps_nothing(mode: str) -> None:
    cluster = TrialCluster(mode)
    found = findings(cluster)
    assert {one.level for one in found} == {"ok", "note"}
    assert len([one for one in found if one.level == "ok"]) == 7
    assert (cluster.pods, cluster.namespaces) == ({}, [])
    text = "\n".join(one.text for one in found)
    assert "gpushare has not run with" not in text
    assert "a pod with 16384 GiB does not run: Insufficient memory-gib" in text


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"mode": ""}, "no node has the label gpushare.io/mode"),
        ({"is_agent_ready": False}, "n: no pod of gpushare-node is ready on it"),
        ({"allocatable": "0"}, "n: mode plugin, 0 of gpushare.io/memory-gib are allocatable"),
        ({"refuses_wrong": False}, "a pod with the memory 4Q is accepted"),
        ({"translates": False}, "a pod with HAMi's limits gets the RuntimeClass (none)"),
        ({"starts": False}, "n: two pods of 1 GiB do not run"),
        ({"starts_large": True}, "n: a pod with 16384 GiB is ['Running']"),
        ({"quota": 2 * GIB}, f"n: gpushared has quotas of [{2 * GIB}, {2 * GIB}] bytes for two"),
        ({"releases": False}, "n: what the pods had is not released"),
        (
            {"checks": [{"level": "fail", "text": "socket: none", "fix": "start the kubelet"}]},
            "n: socket: none; start the kubelet",
        ),
    ],
)
def test_each_fault_is_one_failed_check(fault: dict[str, Any], text: str) -> None:
    cluster = TrialCluster(**fault)
    [failed] = [one.text for one in findings(cluster) if one.level == "fail"]
    assert failed.startswith(text)
    assert cluster.namespaces == []


def test_what_the_cluster_does_not_have_is_noted() -> None:
    cluster = TrialCluster(has_policies=False, versions=("v1.35.1", "cri-o://1.34.0"))
    found = findings(cluster)
    assert not [one for one in found if one.level == "fail"]
    text = "\n".join(one.text for one in found)
    for line in (
        "the cluster has no policy gpushare-requests",
        "the cluster has no policy gpushare-translate",
        "n: gpushare has not run with v1.35.1",
        "n: gpushare has not run with cri-o://1.34.0",
    ):
        assert line in text
    assert findings(cluster, only="m")[0].level == "fail"


def test_a_kubectl_that_fails_ends_it() -> None:
    def kubectl(*_: str, objects: Any = None) -> Answer:
        assert objects is None
        return Answer(1, "", "error: You must be logged in to the server\n")

    with pytest.raises(KubectlError, match="kubectl get: error: You must be logged in"):
        list(ClusterTrial(kubectl, "gpushare-system").run())


def test_the_page_says_what_was_seen_on_a_real_cluster_and_what_never() -> None:
    page = (ROOT / "docs/how-to/try-on-a-cluster.md").read_text()
    for text in (*SEEN, *NEVER):
        assert f"- {text}\n" in page
    assert all(
        text in [one.text.partition(": ")[2] for one in findings(TrialCluster())]
        for text in (*SEEN, *NEVER)
    )
