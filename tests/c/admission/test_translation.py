# SPDX-License-Identifier: Apache-2.0
"""The policy of the chart translates pods with vendors' limits, and leaves all others."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from gpushare.quota.dialects import TABLES
from tests.corpus.pods import Object, requested
from tools.admission import Request, decide, failing, mutated
from tools.check.command import ROOT

from .rendered import translation as policy

pytestmark = pytest.mark.needs("admission")

TYPICAL = {
    "cpu": "1",
    "nvidia.com/gpu": "1",
    "nvidia.com/gpumem": "4096",
    "nvidia.com/gpucores": "30",
}


def pod_of(*containers: Object, metadata: Object | None = None, **spec: Any) -> Object:
    """Return a pod as the API server has it when policies see it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", **(metadata or {})},
        "spec": {"containers": list(containers), **spec},
    }


def container(limits: Object | None = None, name: str = "main", **fields: Any) -> Object:
    resources = {"limits": {**limits}, "requests": {**limits, "memory": "1Gi"}} if limits else {}
    return {"name": name, "image": "IMAGE", "resources": resources, **fields}


def record(pod: Object, name: str = "main") -> list[str]:
    text: str = pod["metadata"]["annotations"][f"gpushare.io/container.{name}.vendor"]
    return text.splitlines()


def only(pod: Object, mode: str = "annotations") -> Object:
    """Return what the policy of a mode makes of one pod."""
    (made,) = mutated(policy(mode), [pod])
    return made


def test_every_limit_that_requests_a_share_is_translated() -> None:
    names = [
        row.name.replace("{model}", "a10").replace("{profile}", "1g.10gb")
        for dialect in TABLES.dialects
        for row in dialect.rows
        if row.where == "limit" and row.role == "request" and row.key not in {"", "policy"}
    ]
    assert len(names) > 30
    pods = [pod_of(container({name: "10"})) for name in names]
    for name, made in zip(names, mutated(policy(nvidia=True), pods), strict=True):
        assert f"limit {name}=10" in record(made)
        resources = made["spec"]["containers"][0]["resources"]
        assert resources == {"requests": {"memory": "1Gi"}}


COUNTED_ELSEWHERE = [
    {"nvidia.com/gpumem": "4096", "nvidia.com/gpu": "2"},
    {"nvidia.com/gpumem": "0", "nvidia.com/gpu": "1"},
    {"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "100"},
    {"nvidia.com/gpumem-percentage": "50"},
    {"nvidia.com/gpucores": "50"},
    {"nvidia.com/gpumem": "4096", "volcano.sh/vgpu-memory": "4096"},
]


def test_what_the_device_plugin_cannot_count_stays_as_it_is() -> None:
    pods = [pod_of(container(limits), container(TYPICAL, "second")) for limits in COUNTED_ELSEWHERE]
    assert mutated(policy("plugin"), pods) == pods
    assert all(made != pod for made, pod in zip(mutated(policy(), pods), pods, strict=True))


LEFT_ALONE = [
    pod_of(container({"cpu": "1", "rdma/hca": "1"})),
    pod_of(container({"nvidia.com/gpu": "1"})),
    pod_of(container({"nvidia.com/mig-1g.10gb": "1"})),
    pod_of(container({"nvshare.com/gpu": "1"})),  # no amount: convert refuses it
    pod_of(container({"gpushare.io/memory-gib": "4"})),
    pod_of(  # a vendor's own DaemonSet
        container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        metadata={"ownerReferences": [{"kind": "DaemonSet", "name": "hami-device-plugin"}]},
    ),
    pod_of(container(), metadata={"annotations": {"gpushare.io/memory": "4GiB"}}),
    pod_of(container(), metadata={"labels": {"aliyun.com/gpu-count": "2"}}),
    pod_of(container(), metadata={"annotations": {"nvidia.com/use-gputype": "A100"}}),
    pod_of(container(TYPICAL), runtimeClassName="kata"),
    pod_of(container(TYPICAL), metadata={"labels": {"gpushare.io/translate": "false"}}),
    pod_of(container(TYPICAL), metadata={"annotations": {"kubernetes.io/config.mirror": "h"}}),
    pod_of(container(TYPICAL, "a" * 47)),  # no annotation can have its name
    pod_of(*(container(TYPICAL, f"c{number}") for number in range(129))),
]


def test_what_is_not_the_policys_stays_as_it_is() -> None:
    assert mutated(policy(), LEFT_ALONE) == LEFT_ALONE


def test_namespaces_of_the_system_and_those_that_opt_out_are_left() -> None:
    opted_out = {"metadata": {"name": "ai", "labels": {"gpushare.io/translate": "false"}}}
    pods = [
        pod_of(container(TYPICAL), metadata={"name": "p", "namespace": name})
        for name in ("kube-system", "gpushare-system", "ai", "others")
    ]
    made = mutated(policy(), pods, namespaces=[opted_out])
    assert made[:3] == pods[:3]
    assert made[3] != pods[3]


def test_a_pod_is_translated_only_when_it_is_created() -> None:
    before = pod_of(container(TYPICAL))
    (made,) = decide([failing(policy())], [Request(before, "UPDATE", before)])
    assert not made.changed
    assert not made.refused


def test_the_runtime_of_nvidia_is_replaced_and_other_fields_stay() -> None:
    made = only(
        pod_of(
            container(TYPICAL),
            metadata={"annotations": {"gpushare.io/container.main.policy": "best-effort"}},
            runtimeClassName="nvidia",
            schedulerName="kai-scheduler",
            nodeSelector={"pool": "gpu"},
        )
    )
    assert made["spec"]["runtimeClassName"] == "gpushare"
    assert made["spec"]["schedulerName"] == "kai-scheduler"
    assert made["spec"]["nodeSelector"] == {"pool": "gpu"}
    found = requested(made["spec"]["containers"][0], made["metadata"]["annotations"])
    assert isinstance(found, dict)
    assert (found["memory_bytes"], found["policy"]) == (4096 << 20, "best-effort")


def test_the_documented_pod_is_what_the_policy_makes() -> None:
    text = (ROOT / "docs/how-to/admission-policies.md").read_text()
    before, after = map(yaml.safe_load, re.findall(r"(?s)```yaml\n(.*?)```", text))
    # As the API server stores it.
    (stored,) = (one.object for one in decide([], [Request(after)]))
    made = only(before, "plugin")
    name = "gpushare.io/container.main.vendor"
    records = [one["metadata"]["annotations"].pop(name).splitlines() for one in (made, stored)]
    assert sorted(records[0]) == sorted(records[1])
    assert made == stored
