# SPDX-License-Identifier: Apache-2.0
"""The MutatingAdmissionPolicy as configs/kubernetes has it, and with admission.nvidia."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import yaml
from packages.vendor_keys import vendor_keys

from tools.admission import Object, Request, decide, failing
from tools.check.command import ROOT

NAMESPACE = "gpushare-system"


@cache
def translation(mode: str = "annotations", *, nvidia: bool = False) -> dict[str, Any]:
    """Return the policy for nodes of `mode`; `nvidia` is admission.nvidia of the chart."""
    file = ROOT / "configs/kubernetes" / mode / "mutatingadmissionpolicy.yaml"
    policy, _binding = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    assert isinstance(policy, dict)
    if nvidia:
        keys = vendor_keys()
        variables = {one["name"]: one for one in policy["spec"]["variables"]}
        limits = json.loads(variables["limit"]["expression"]) | dict.fromkeys(keys["nvidia"], True)
        variables["limit"]["expression"] = json.dumps(limits, separators=(",", ":"))
        patterns = keys["limit"]["requesting"], keys["nvidiaPatterns"]
        requesting = variables["requesting"]["expression"]
        variables["requesting"]["expression"] = requesting.replace(*patterns)
    return policy


def warned(mode: str, file: str, name: str, objects: Iterable[Object]) -> list[str]:
    """Return what a policy that only warns says of each object, in a cluster of `mode`."""
    text = (ROOT / "configs/kubernetes" / mode / file).read_text(encoding="utf-8")
    policy, binding = (one for one in yaml.safe_load_all(text) if one["metadata"]["name"] == name)
    assert binding["spec"]["validationActions"] == ["Warn"]
    both = [failing(translation(mode)), failing(policy)]
    return [" ".join(one.messages) for one in decide(both, map(Request, objects))]


def deployment(template: Object) -> Object:
    """Return a Deployment of pods with the label app=a."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template},
    }
