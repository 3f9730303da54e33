# SPDX-License-Identifier: Apache-2.0
"""Checks objects strictly against the published schemas of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import kubernetes_validate
import pytest

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
DRA_VERSIONS = VERSIONS[4:]  # resource.k8s.io/v1
#: Of MutatingAdmissionPolicies, by the version of admissionregistration.k8s.io.
MUTATING_VERSIONS = {"v1": VERSIONS[6:], "v1beta1": VERSIONS[4:]}


def versions_of(body: dict[str, Any]) -> tuple[str, ...]:
    """Return the versions of Kubernetes that have the kind of `body`."""
    group, _, version = body["apiVersion"].rpartition("/")
    if body["kind"].startswith("MutatingAdmissionPolicy"):
        return MUTATING_VERSIONS[version]
    return DRA_VERSIONS if group == "resource.k8s.io" else VERSIONS


def check(body: dict[str, Any], versions: Iterable[str] = ()) -> None:
    """Fail if `body` is not valid in one of `versions`, or has a field that it does not know.

    Without `versions`, it is checked in each that has its kind.
    """
    for version in versions or versions_of(body):
        _check(json.dumps(body, sort_keys=True), version)


@cache
def _check(body: str, version: str) -> None:
    try:
        used = kubernetes_validate.validate(json.loads(body), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        pytest.fail(f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
    assert used == version, f"there is no schema of {version}"
