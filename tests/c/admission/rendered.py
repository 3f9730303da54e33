# SPDX-License-Identifier: Apache-2.0
"""The MutatingAdmissionPolicy as configs/kubernetes has it, and with admission.nvidia."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import yaml
from packages.vendor_keys import vendor_keys

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
