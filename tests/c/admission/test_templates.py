# SPDX-License-Identifier: Apache-2.0
"""The policy that holds a ResourceClaimTemplate to its name, whoever creates it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml

from gpushare.kubernetes.templates import content
from tests.corpus.pods import Object
from tools.admission import Request, decide, failing
from tools.check.command import ROOT

pytestmark = pytest.mark.needs("admission")

FILE: Final = ROOT / "configs/kubernetes/dra/claimadmissionpolicy.yaml"
MAKER: Final = {"username": "system:serviceaccount:gpushare-system:gpushare-templates"}
TENANT: Final = {"username": "alice"}
#: Every amount of compute and number of cards; of the memory, the ends and one between.
MEMORY: Final = ("1mi", "4096mi", "999999999mi", "all")
CORES: Final = tuple(map(str, range(101)))
CARDS: Final = tuple(map(str, range(1, 17)))
DEVICES: Final = [
    {"name": f"card-{size}", "capacity": {"memory": {"value": size}}} for size in ("139Gi", "79Gi")
]


def template(name: str, spec: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


POLICY: Final = next(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))


def refused(requests: list[Request]) -> list[str]:
    assert POLICY["metadata"]["name"] == "gpushare-templates"
    decisions = decide([failing(POLICY)], requests)
    assert not [one.refused for one in decisions if "resulted in error" in one.refused]
    return [" ".join(one.messages) for one in decisions]


def made(name: str) -> Object:
    spec = content(name, DEVICES)
    assert spec is not None, name
    return template(name, spec)


def test_what_the_controller_makes_of_a_name_is_admitted() -> None:
    names = ["-".join(("gpushare", *one)) for one in itertools.product(MEMORY, CORES, CARDS)]
    bodies = [made(name) for name in names]
    assert not any(refused([Request(one, user=TENANT) for one in bodies]))
    parts = [made(f"gpushare-{percent}pct-30-2") for percent in range(1, 100)]
    assert not any(refused([Request(one, user=MAKER) for one in (*parts, *bodies)]))
    for said in refused([Request(one, user=TENANT) for one in parts]):
        assert "only gpushare-templates creates templates of percentages" in said


def changed(change: Callable[[Any, Any], Any], name: str = "gpushare-4096mi-30-2") -> Object:
    """Return the template of a name with another content."""
    body = copy.deepcopy(made(name))
    devices = body["spec"]["spec"]["devices"]
    change(devices, devices["requests"][0]["exactly"])
    return body


def test_another_content_is_refused() -> None:
    selector = [{"cel": {"expression": "true"}}]
    bodies = [
        changed(lambda _, asked: asked["capacity"]["requests"].update(memory="80Gi")),
        changed(lambda _, asked: asked["capacity"]["requests"].update(cores="31")),
        changed(lambda _, asked: asked["capacity"]["requests"].pop("memory")),
        changed(lambda _, asked: asked["capacity"]["requests"].pop("cores")),
        changed(lambda _, asked: asked.pop("capacity")),
        changed(lambda _, asked: asked.update(count=3)),
        changed(lambda _, asked: asked.update(allocationMode="All")),
        changed(lambda _, asked: asked.update(adminAccess=True)),
        changed(lambda _, asked: asked.update(selectors=selector)),
        changed(lambda _, asked: asked.update(deviceClassName="another")),
        changed(lambda devices, _: devices.pop("constraints")),
        changed(lambda devices, _: devices["constraints"].append(devices["constraints"][0])),
        changed(lambda devices, _: devices["requests"].append(devices["requests"][0])),
        changed(lambda devices, _: devices["requests"][0].update(name="other")),
        changed(lambda devices, _: devices.update(config=[{"requests": ["gpu"]}])),
        changed(
            lambda _, asked: asked.update(capacity={"requests": {"memory": "1Gi"}}),
            "gpushare-all-0-1",
        ),
    ]
    for body, said in zip(bodies, refused([Request(one) for one in bodies]), strict=True):
        assert "does not say what its name says" in said, body


def test_a_template_without_a_request_is_refused_as_an_expression_has_no_value() -> None:
    assert POLICY["spec"]["failurePolicy"] == "Fail"
    empty: list[Any] = [{}, {"devices": {}}]
    bodies = [template("gpushare-1mi-0-1", {"spec": spec}) for spec in empty]
    assert all(one.refused for one in decide([POLICY], map(Request, bodies)))


def test_a_name_that_means_nothing_is_refused_and_another_is_not_ours() -> None:
    spec = content("gpushare-1mi-0-1")
    meaningless = ["gpushare-own", "gpushare-0mi-0-1", "gpushare-1mi-101-1", "gpushare-1mi-0-17"]
    for said in refused([Request(template(name, spec)) for name in meaningless]):
        assert "gpushare-MEMORY-CORES-CARDS" in said
    own = template("own", {"spec": {"devices": {}}})
    assert refused([Request(own, user=TENANT)]) == [""]
    assert "gpushare-MEMORY-CORES-CARDS" in refused([Request(own, user=MAKER)])[0]
