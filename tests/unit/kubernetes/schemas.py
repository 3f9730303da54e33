# SPDX-License-Identifier: Apache-2.0
"""Checks objects strictly against the published schemas of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kubernetes_validate
import pytest

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
DRA_VERSIONS = VERSIONS[4:]  # resource.k8s.io/v1


def check(body: dict[str, Any], versions: Iterable[str] = VERSIONS) -> None:
    """Fail if `body` is not valid in one of `versions`, or has a field that it does not know."""
    for version in versions:
        try:
            used = kubernetes_validate.validate(body, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
        assert used == version, f"there is no schema of {version}"
