# SPDX-License-Identifier: Apache-2.0
"""The manifests that are shipped and shown grant no more than is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from gpushare.kubernetes.api.claims import (
    PARAMETERS_KIND,
    PARAMETERS_VERSION,
    read_parameters,
)
from gpushare.kubernetes.api.slices import devices_of
from gpushare.protocol.kubernetes import DRIVER, MODE_LABEL
from gpushare.quota.keys import KEYS
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
