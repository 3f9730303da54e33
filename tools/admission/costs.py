# SPDX-License-Identifier: Apache-2.0
"""What the policies of the chart cost for some pods, in the API server's units of CEL."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import yaml

from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS

from . import ROOT, Decision, Object, Request, decide, failing

#: What an API server spends on one policy for one request.
BUDGET: Final = 10_000_000
#: What the match conditions of one policy may cost for a pod that requests nothing.
PLAIN: Final = 100
CONTAINERS: Final = 64
_AT: Final = ("limit", "label", "annotation", "env")
_FILES: Final = ROOT / "packaging/helm/gpushare/files"


def _load(path: str) -> Any:
    return next(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))


@cache
def _policies() -> list[Object]:
    """Return the translating policy, and the stricter one of the other two."""
    return [
        _load("configs/kubernetes/annotations/mutatingadmissionpolicy.yaml"),
        {
            **_load("configs/kubernetes/annotations/validatingadmissionpolicy.yaml"),
            "spec": yaml.safe_load((_FILES / "validating-policy-strict.yaml").read_text()),
        },
    ]


def _pod(
    count: int,
    limits: Object,
    env: tuple[str, ...] = (),
    labels: Object | None = None,
    annotations: Object | None = None,
) -> Object:
    container = {
        "image": "IMAGE",
        "resources": {"limits": limits},
        "env": [{"name": name, "value": "1"} for name in env],
    }
    containers = [{"name": f"c{number}", **container} for number in range(count)]
    metadata = {"name": "p", "labels": labels or {}, "annotations": annotations or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers},
    }


@cache
def pods() -> dict[str, Object]:
    """Return pods by what they are: those with many containers are the largest that there are."""
    keys = yaml.safe_load((_FILES / "vendor-keys.yaml").read_text(encoding="utf-8"))
    everything = {where: dict.fromkeys(keys[where]["keys"], "1") for where in keys if where in _AT}
    record = "\n".join(["position 0", *(f"limit {name}=1" for name in everything["limit"])])
    scopes = [f"{ANNOTATION_PREFIX}container.c{number}." for number in range(CONTAINERS)]
    return {
        "plain": _pod(2, {"cpu": "1"}, ("PATH",), {"app": "web"}, {"prometheus.io/scrape": "true"}),
        "one of HAMi": _pod(1, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}),
        "64 containers of HAMi": _pod(
            CONTAINERS, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}, ("PATH",) * 30
        ),
        "64 containers, every vendor's keys": _pod(
            CONTAINERS,
            everything["limit"],
            tuple(everything["env"]),
            everything["label"],
            everything["annotation"],
        ),
        "64 containers, every key of gpushare": _pod(
            CONTAINERS, {}, annotations={scope + key: "4GiB" for scope in scopes for key in KEYS}
        ),
        "64 containers, every vendor's limits recorded": _pod(
            CONTAINERS, {}, annotations={f"{scope}vendor": record for scope in scopes}
        ),
    }


@cache
def decisions() -> dict[str, Decision]:
    """Return what becomes of each pod, and what that costs, by policy and part of the policy.

    The pods of mode dra are decided by its translation alone.
    """
    policies = [failing(policy) for policy in _policies()]
    of_dra = [failing(_load("configs/kubernetes/dra/mutatingadmissionpolicy.yaml"))]
    requests = list(map(Request, pods().values()))
    in_dra = (f"{name}, mode dra" for name in pods())
    return {
        **dict(zip(pods(), decide(policies, requests), strict=True)),
        **dict(zip(in_dra, decide(of_dra, requests), strict=True)),
    }
