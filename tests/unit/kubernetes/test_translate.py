# SPDX-License-Identifier: Apache-2.0
"""The chart's MutatingAdmissionPolicy: a pod requests what `gpushare convert` writes for it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from packages import vendor_keys

from gpushare.protocol.kubernetes import RESOURCE
from gpushare.quota.dialects import TABLES
from tests.admission import mutate
from tests.admission.rendered import translation as policy
from tests.corpus.pods import Object, on_node, pods_of, requested, spec_request
from tools.check.command import ROOT

GIB = 1 << 30
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


def test_the_table_is_that_of_the_dialects() -> None:
    text = (ROOT / vendor_keys.FILE).read_text()
    assert text == vendor_keys.text(), "cd packaging && ../.venv/bin/python -m packages.vendor_keys"


def test_every_limit_that_requests_a_share_is_translated() -> None:
    rows = [
        row
        for dialect in TABLES.dialects
        for row in dialect.rows
        if row.where == "limit" and row.role == "request" and row.key not in {"", "policy"}
    ]
    assert len(rows) > 30
    for row in rows:
        name = row.name.replace("{model}", "a10").replace("{profile}", "1g.10gb")
        made = mutate(policy(nvidia=True), pod_of(container({name: "10"})))
        assert f"limit {name}=10" in record(made)
        assert made["spec"]["containers"][0]["resources"]["limits"] == {}


def test_a_translated_pod_asks_the_scheduler_for_nothing_of_the_vendors() -> None:
    before = pod_of(
        container(TYPICAL), container({"cpu": "2"}, "proxy"), schedulerName="hami-scheduler"
    )
    made = mutate(policy(), before)
    assert record(made)[0] == "position 0"
    assert sorted(record(made)[1:]) == [
        "limit nvidia.com/gpu=1",
        "limit nvidia.com/gpucores=30",
        "limit nvidia.com/gpumem=4096",
    ]
    assert list(made["metadata"]["annotations"]) == ["gpushare.io/container.main.vendor"]
    assert made["spec"] == {
        "runtimeClassName": "gpushare",
        "schedulerName": "default-scheduler",
        "containers": [
            container(
                resources={"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}}
            ),
            container({"cpu": "2"}, "proxy"),
        ],
    }


def test_the_scheduler_counts_memory_in_mode_plugin() -> None:
    limits = {**TYPICAL, "nvidia.com/gpumem": "4097"}
    made = mutate(policy("plugin"), pod_of(container(limits), container(TYPICAL, "second")))
    assert made["spec"]["runtimeClassName"] == "gpushare-plugin"
    first, second = made["spec"]["containers"]
    assert first["resources"]["limits"] == {"cpu": "1", RESOURCE: "5"}
    assert second["resources"]["limits"] == {"cpu": "1", RESOURCE: "4"}
    annotations = made["metadata"]["annotations"]
    found = requested(first, annotations, "plugin")
    assert isinstance(found, dict)
    assert (found["memory_bytes"], found["cores"]) == (4097 << 20, 30)
    notes = spec_request(first, annotations, 5 * GIB).quota.notes
    assert not [note for note in notes if "was not applied" in note]


def test_each_limit_of_memory_becomes_the_least_units_that_contain_it() -> None:
    for name in vendor_keys.vendor_keys()["memory"]:
        for amount in ("7", "4097", "17Gi"):
            before = pod_of(container({name: amount}))
            made = mutate(policy(), before)
            found = requested(made["spec"]["containers"][0], made["metadata"]["annotations"])
            if isinstance(found, str):
                continue  # gpushared refuses this amount in the vendor's unit
            counted = mutate(policy("plugin"), before)["spec"]["containers"][0]
            units = -(-int(str(found["memory_bytes"])) // GIB)
            assert counted["resources"]["limits"] == {RESOURCE: str(units)}, (name, amount)


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpumem": "4096", "nvidia.com/gpu": "2"},
        {"nvidia.com/gpumem": "0", "nvidia.com/gpu": "1"},
        {"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "100"},
        {"nvidia.com/gpumem-percentage": "50"},
        {"nvidia.com/gpucores": "50"},
        {"nvidia.com/gpumem": "4096", "volcano.sh/vgpu-memory": "4096"},
    ],
)
def test_what_the_device_plugin_cannot_count_stays_as_it_is(limits: Object) -> None:
    before = pod_of(container(limits), container(TYPICAL, "second"))
    assert mutate(policy("plugin"), before) == before
    assert mutate(policy(), before) != before


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ({"nvidia.com/gpumem": "5k"}, "limit nvidia.com/gpumem=5000"),  # as the API server has 5000
        ({"koordinator.sh/gpu-memory": "8Gi"}, "limit koordinator.sh/gpu-memory=8589934592"),
        ({"nvidia.com/gpu": "500m"}, "limit nvidia.com/gpu=0.5"),  # Huawei: half a card
        ({"vke.volcengine.com/mgpu-core": "300m"}, "limit vke.volcengine.com/mgpu-core=0.3"),
    ],
)
def test_quantities_are_recorded_as_their_vendors_write_them(limits: Object, line: str) -> None:
    assert line in record(mutate(policy(), pod_of(container(limits))))


def test_containers_of_all_kinds_have_their_own_record() -> None:
    sidecar = container(TYPICAL, "sidecar", restartPolicy="Always")
    before = pod_of(
        container(TYPICAL, "second"),
        container({"nvidia.com/gpumem": "1024"}, "third"),
        initContainers=[container(name="plain"), sidecar],
    )
    made = mutate(policy(), before)
    assert record(made, "sidecar")[0] == "position 1"
    assert record(made, "second")[0] == "position 0"
    assert record(made, "third") == ["position 1", "limit nvidia.com/gpumem=1024"]
    assert "gpushare.io/container.plain.vendor" not in made["metadata"]["annotations"]
    assert made["spec"]["initContainers"][1]["resources"]["limits"] == {"cpu": "1"}


def test_labels_annotations_and_variables_of_the_same_vendor_are_recorded() -> None:
    env = [
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"},
        {"name": "CUDA_TASK_PRIORITY", "valueFrom": {"configMapKeyRef": {}}},
        {"name": "TOKEN", "value": "secret"},
    ]
    metadata = {
        "annotations": {"nvidia.com/use-gputype": "A100,\nA10", "other": "1"},
        "labels": {"aliyun.com/gpu-count": "2", "app": "a"},
    }
    made = mutate(policy(), pod_of(container(TYPICAL, env=env), metadata=metadata))
    assert sorted(record(made)) == [
        "annotation nvidia.com/use-gputype=A100, A10",
        "env GPU_CORE_UTILIZATION_POLICY=disable",
        "label aliyun.com/gpu-count=2",
        "limit nvidia.com/gpu=1",
        "limit nvidia.com/gpucores=30",
        "limit nvidia.com/gpumem=4096",
        "position 0",
    ]
    assert made["metadata"]["labels"] == metadata["labels"]


def test_annotations_of_kai_alone_request() -> None:
    annotations = {"nvidia.com/container.main.gpu-memory.request": "4Gi"}
    before = pod_of(container(), metadata={"annotations": annotations})
    made = mutate(policy(), before)
    assert made["spec"]["runtimeClassName"] == "gpushare"
    assert made["metadata"]["annotations"].items() > annotations.items()
    assert mutate(policy(), made) == made


def test_a_mig_limit_is_translated_where_no_plugin_of_nvidia_s_is() -> None:
    pod = pod_of(container({"nvidia.com/mig-1g.10gb.me": "1"}))
    assert "limit nvidia.com/mig-1g.10gb.me=1" in record(mutate(policy(nvidia=True), pod))
    other = pod_of(container({"nvidia.com/mig-1c.3g.40gb": "1"}))
    assert "annotations" not in mutate(policy(nvidia=True), other)["metadata"]


def test_a_container_that_is_added_later_is_translated_when_the_policy_runs_again() -> None:
    made = mutate(policy(), pod_of(container(TYPICAL)))
    made["spec"]["containers"].append(container(TYPICAL, "added"))
    again = mutate(policy(), made)
    assert record(again, "added")[0] == "position 1"
    assert record(again) == record(made)


@pytest.mark.parametrize(
    "pod",
    [
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
    ],
)
def test_what_is_not_the_policys_stays_as_it_is(pod: Object) -> None:
    assert mutate(policy(), pod) == pod


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("kube-system", {}),
        ("gpushare-system", {}),
        ("ai", {"gpushare.io/translate": "false"}),
    ],
)
def test_namespaces_of_the_system_and_those_that_opt_out_are_left(
    name: str, labels: Object
) -> None:
    labels = {"kubernetes.io/metadata.name": name, **labels}
    namespace = {"metadata": {"name": name, "labels": labels}}
    before = pod_of(container(TYPICAL), metadata={"namespace": name})
    assert mutate(policy(), before, namespace=namespace) == before


def test_a_pod_is_translated_only_when_it_is_created() -> None:
    before = pod_of(container(TYPICAL))
    assert mutate(policy(), before, operation="UPDATE", old_object=before) == before


def test_the_runtime_of_nvidia_is_replaced_and_other_fields_stay() -> None:
    before = pod_of(
        container(TYPICAL),
        metadata={"annotations": {"gpushare.io/container.main.policy": "best-effort"}},
        runtimeClassName="nvidia",
        schedulerName="kai-scheduler",
        nodeSelector={"pool": "gpu"},
    )
    made = mutate(policy(), before)
    assert made["spec"]["runtimeClassName"] == "gpushare"
    assert made["spec"]["schedulerName"] == "kai-scheduler"
    assert made["spec"]["nodeSelector"] == {"pool": "gpu"}
    found = requested(made["spec"]["containers"][0], made["metadata"]["annotations"])
    assert isinstance(found, dict)
    assert (found["memory_bytes"], found["policy"]) == (4096 << 20, "best-effort")


def test_the_documented_pod_is_what_the_policy_makes() -> None:
    text = (ROOT / "docs/how-to/admission-policies.md").read_text()
    before, after = map(yaml.safe_load, re.findall(r"(?s)```yaml\n(.*?)```", text))
    made = mutate(policy("plugin"), before)
    name = "gpushare.io/container.main.vendor"
    records = [one["metadata"]["annotations"].pop(name).splitlines() for one in (made, after)]
    assert sorted(records[0]) == sorted(records[1])
    assert made == after


def test_the_how_to_shows_what_the_policy_makes_of_hamis_manifest() -> None:
    text = (ROOT / "docs/how-to/kubernetes.md").read_text()
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```$", text)
    (block,) = (one for one in blocks if "nvidia.com/gpumem" in one)
    (pod,) = (mutate(policy("plugin"), one) for one in pods_of("hami.yaml", block))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: "16"}
    (found,) = on_node([pod], "plugin")
    assert isinstance(found, dict)
    assert (found["memory_bytes"], found["cores"]) == (16 << 30, 40)
    assert "`gpushare.io/memory-gib: 16`, and 40 % of the compute" in " ".join(text.split())
    assert f"manifests of {len(TABLES.dialects)} systems" in " ".join(text.split())
