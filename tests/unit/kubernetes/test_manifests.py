# SPDX-License-Identifier: Apache-2.0
"""The manifests that are shipped and shown grant no more than is used."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpushare.kubernetes.api.claims import (
    CLAIMS,
    PARAMETERS_KIND,
    PARAMETERS_VERSION,
    ClaimReader,
    read_parameters,
)
from gpushare.kubernetes.api.devices import devices_of
from gpushare.kubernetes.api.event_recorder import EventRecorder, KubernetesEvent, PodContainer
from gpushare.kubernetes.api.labels import NODES, NodeLabels
from gpushare.kubernetes.api.prepared_claims import PreparedClaims
from gpushare.kubernetes.api.server import ApiServer, path_of
from gpushare.kubernetes.api.slices import SLICES, SlicePublisher
from gpushare.kubernetes.api.watch import WatchedObjects
from gpushare.protocol.kubernetes import DRIVER, MODE_LABEL
from gpushare.quota.keys import KEYS
from tests.stack.api_server import StandInApiServer
from tests.system.waiting import wait_until
from tools.check.command import ROOT

from .made import GIB, card, node
from .scheduler import ModelScheduler
from .test_claims import body as claim_body

#: Of the mode with the most objects and rights; test_kustomizations.py is about the others.
FOLDER = ROOT / "configs/kubernetes/dra"
PAGES = sorted((ROOT / "docs/how-to").glob("kubernetes*.md"))
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


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


def test_the_page_on_claims_shows_what_people_run() -> None:
    kinds = {name.split()[1] for name in SHOWN if name.startswith("kubernetes-dra.md")}
    assert {"Job", "Deployment", "Pod", "ResourceClaimTemplate"} <= kinds


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


def test_the_class_selects_the_cards_of_this_driver_that_can_be_shared() -> None:
    (device_class,) = of("DeviceClass", SHIPPED)
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        f"device.driver == '{DRIVER}' && device.allowMultipleAllocations"
    )
    assert device_class["spec"]["extendedResourceName"] == "gpushare.io/card"


def test_the_parameters_in_the_page_are_of_the_version_that_is_read() -> None:
    text = (ROOT / "docs/how-to/kubernetes-dra.md").read_text()
    assert f"apiVersion: {PARAMETERS_VERSION}" in text
    assert f"kind: {PARAMETERS_KIND}" in text


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
    (role,) = of("ClusterRole", SHIPPED)
    found = {
        (verb, f"{group}/{resource}")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    of_fields = {one for one in found if one[1] == "resource.k8s.io/resourceclaims/driver"}
    assert of_fields == {("associated-node:update", "resource.k8s.io/resourceclaims/driver")}
    return found - of_fields
