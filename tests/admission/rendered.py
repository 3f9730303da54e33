# SPDX-License-Identifier: Apache-2.0
"""The admission policies that helm renders from the chart."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import yaml

from tests.stack.program import find
from tools.check.command import ROOT

CHART = ROOT / "packaging/helm/gpushare"
NAMESPACE = "gpushare-system"


@cache
def translation(mode: str = "annotations", *, nvidia: bool = False) -> dict[str, Any]:
    """Return the MutatingAdmissionPolicy for nodes of `mode`; `nvidia` is admission.nvidia."""
    values = [f"--set=mode={mode}", f"--set=admission.nvidia={str(nvidia).lower()}"]
    template = "--show-only=templates/mutatingadmissionpolicy.yaml"
    words = [find("helm"), "template", "gpushare", str(CHART), "--kube-version=1.36", template]
    done = subprocess.run(
        [*words, f"--namespace={NAMESPACE}", *values], check=True, capture_output=True, text=True
    )
    policy, _binding = yaml.safe_load_all(done.stdout)
    assert isinstance(policy, dict)
    return policy
