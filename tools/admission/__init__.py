# SPDX-License-Identifier: Apache-2.0
"""Decides requests as an API server does: the program of this folder has its admission plugins.

`./dev admission` builds it (packaging/setup/admission.py). What it does not have of an API server:
the defaults of objects, the validation of a policy's fields other than expressions, and the schemas
of kinds outside core, apps and batch. The order of a map's keys is random, as it is there.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = ROOT / "build/tools/usr/local/bin/gpushare-admission"
#: The digest of the policies that tests/c/admission last passed with.
PASSED: Final = Path(__file__).with_name("passed.txt")
_CHART: Final = ROOT / "packaging/helm/gpushare"
_CLUSTER_SCOPED: Final = {"Node", "ResourceSlice"}

Object = dict[str, Any]


class Request(NamedTuple):
    """A request to the API server; `user` is its userInfo, and None one without rights."""

    object: Object | None
    operation: str = "CREATE"
    old_object: Object | None = None
    user: Object | None = None


class Decision(NamedTuple):
    """What the API server makes of a request.

    `object` is what it stores. `refused` is the error, and `messages` are those of all validations
    that failed. `costs` are units of CEL, by policy and part.
    """

    object: Object
    changed: bool
    refused: str
    messages: list[str]
    costs: dict[str, dict[str, int]]


def decide(
    policies: Sequence[Object],
    requests: Iterable[Request],
    *,
    namespaces: Sequence[Object] = (),
    since: str = "",
) -> list[Decision]:
    """Return the decisions; AssertionError if the API server would not store one of the policies.

    Args:
        policies: bound to everything, with the actions Deny and Audit.
        requests: an object without a namespace is in `default`.
        namespaces: those with labels.
        since: the oldest version of Kubernetes that has to know each function.
    """
    question = {
        "policies": [_v1(one) for one in policies],
        "namespaces": namespaces,
        "since": since,
        "requests": [_asked(one) for one in requests],
    }
    done = subprocess.run(
        [PROGRAM], input=json.dumps(question), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    errors = {one["name"]: one["errors"] for one in answer["policies"] if one["errors"]}
    assert not errors, errors
    return [Decision(**one) for one in answer["requests"]]


def mutated(
    policy: Object, objects: Iterable[Object], *, namespaces: Sequence[Object] = ()
) -> list[Object]:
    """Return what a policy makes of objects; AssertionError if an expression has no value."""
    given = list(objects)
    decisions = decide([failing(policy)], map(Request, given), namespaces=namespaces)
    assert not [one.refused for one in decisions if one.refused]
    pairs = zip(given, decisions, strict=True)
    return [decision.object if decision.changed else before for before, decision in pairs]


def failing(policy: Object) -> Object:
    """Return a policy with which an expression without a value is a refusal, and so is seen."""
    return {**policy, "spec": {**policy["spec"], "failurePolicy": "Fail"}}


def digest() -> str:
    """Return the digest of the files of the chart that make the policies."""
    paths = [*_CHART.glob("files/*.yaml"), *_CHART.glob("templates/*admissionpolic*.yaml")]
    paths.append(_CHART / "templates/_translate.tpl")
    content = b"".join(path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(content).hexdigest()


def _v1(policy: Object) -> Object:
    return {**policy, "apiVersion": policy["apiVersion"].replace("v1beta1", "v1")}


def _asked(one: Request) -> Object:
    """Return the request as the program reads it: without what is None."""
    found = {
        "operation": one.operation,
        "object": _placed(one.object),
        "oldObject": _placed(one.old_object),
        "user": one.user,
    }
    return {name: value for name, value in found.items() if value is not None}


def _placed(given: Object | None) -> Object | None:
    if given is None or given["kind"] in _CLUSTER_SCOPED:
        return given
    return {**given, "metadata": {"namespace": "default", **given.get("metadata", {})}}
