# SPDX-License-Identifier: Apache-2.0
"""Shipped manifests and pages agree with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from packages import validating_policy, vendor_keys

from gpushare.protocol.kubernetes import MODE_LABEL
from tools import admission
from tools.check.command import ROOT

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


def test_the_table_is_that_of_the_dialects() -> None:
    text = (ROOT / vendor_keys.FILE).read_text()
    assert text == vendor_keys.text(), "cd packaging && ../.venv/bin/python -m packages.vendor_keys"


def test_the_validating_policies_are_those_of_the_tables() -> None:
    command = "cd packaging && ../.venv/bin/python -m packages.validating_policy"
    for name, text in validating_policy.files().items():
        assert (ROOT / validating_policy.FOLDER / name).read_text(encoding="utf-8") == text, command


def test_the_policies_are_those_that_kubernetes_own_plugins_were_tried_with() -> None:
    """So they have passed tests/c/admission, which the gate runs only where the plugins are."""
    assert admission.PASSED.read_text().strip() == admission.digest(), "run ./dev admission"
