# SPDX-License-Identifier: Apache-2.0
"""Shipped manifests and pages agree with the code, and vendors' limits are translated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from packages import vendor_keys

from gpushare.kubernetes.api.claims import read_parameters
from gpushare.kubernetes.api.slices import devices_of
from gpushare.protocol.kubernetes import DRIVER, MODE_LABEL
from gpushare.quota.dialects import TABLES
from gpushare.quota.keys import KEYS
from tests.admission import mutate
from tests.admission.rendered import translation as policy
from tests.corpus.pods import Object, requested
from tools.check.command import ROOT

from .made import GIB, card, node
from .scheduler import ModelScheduler

#: Of the mode with the most objects and rights; test_kustomizations.py is about the others.
FOLDER = ROOT / "configs/kubernetes/dra"


PAGES = sorted((ROOT / "docs/how-to").glob("kubernetes*.md"))


_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shipped() -> list[dict[str, Any]]:
    return [
        body
        for file in sorted(FOLDER.glob("*.yaml"))
        for body in yaml.safe_load_all(file.read_text())
        if "metadata" in body  # not the Kustomization
    ]


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects in the pages, with a name for each."""
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            for body in yaml.safe_load_all(block):
                if isinstance(body, dict) and "apiVersion" in body and "metadata" in body:
                    yield f"{page.name} {body['kind']} {body['metadata']['name']}", body


SHIPPED = shipped()


SHOWN = dict(shown())


OBJECTS = {f"{one['kind']} {one['metadata']['name']}": one for one in SHIPPED} | SHOWN


def of(kind: str, objects: Any) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def test_there_is_a_runtime_class_for_each_mode() -> None:
    selected = [one["scheduling"]["nodeSelector"] for one in of("RuntimeClass", SHIPPED)]
    assert selected == [{MODE_LABEL: mode} for mode in ("annotations", "plugin", "dra")]
    assert {one["handler"] for one in of("RuntimeClass", SHIPPED)} == {"gpushare"}


def test_pods_use_classes_and_templates_that_exist() -> None:
    classes = {one["metadata"]["name"] for one in of("RuntimeClass", OBJECTS.values())}
    templates = {one["metadata"]["name"] for one in of("ResourceClaimTemplate", SHOWN.values())}
    specs = [pod for one in SHOWN.values() if (pod := pod_spec(one))]
    assert len(specs) >= 5
    for spec in specs:
        assert spec.get("runtimeClassName", "gpushare") in classes
        claimed = {claim["resourceClaimTemplateName"] for claim in spec.get("resourceClaims", [])}
        assert claimed <= templates


def pod_spec(one: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = one.get("spec") or {}
    return spec if one["kind"] == "Pod" else (spec.get("template") or {}).get("spec") or {}


def test_claims_in_the_pages_can_be_allocated_on_a_card() -> None:
    (device_class,) = of("DeviceClass", SHIPPED)
    attributes = devices_of(node())[0]["attributes"]
    for template in of("ResourceClaimTemplate", SHOWN.values()):
        devices = template["spec"]["spec"]["devices"]
        for request in devices["requests"]:
            exactly = request["exactly"]
            assert exactly["deviceClassName"] == device_class["metadata"]["name"]
            for selector in exactly.get("selectors", []):
                names = re.findall(
                    rf"device\.attributes\['{DRIVER}'\]\.(\w+)", selector["cel"]["expression"]
                )
                assert names, selector
                assert set(names) <= set(attributes)
            scheduler = ModelScheduler(devices_of(node(card(0), card(1))))
            result = scheduler.allocate(exactly["capacity"]["requests"])
            assert int(result["consumedCapacity"]["memory"]) >= 20 * GIB
        for entry in devices.get("config", []):
            assert entry["opaque"]["driver"] == DRIVER
            given = read_parameters(entry["opaque"]["parameters"])
            assert given
            assert set(given) <= set(KEYS)


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
