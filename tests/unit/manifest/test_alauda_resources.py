# SPDX-License-Identifier: Apache-2.0
"""The ConfigMaps by which Alauda's console offers resources: written and checked."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from gpushare.manifest import read
from gpushare.manifest.alauda import GROUPS, config_maps
from gpushare.manifest.check import check
from gpushare.quota.dialects import DIALECTS

EVERY = [resource for group in GROUPS.values() for resource in group.resources]
HAN = re.compile("[\u4e00-\u9fff]")


def listed(maps: list[dict[str, Any]]) -> str:
    """Return `maps` as `kubectl get configmaps -o yaml` prints them."""
    for number, one in enumerate(maps):
        one["metadata"] |= {
            "creationTimestamp": "2026-09-01T08:00:00Z",
            "resourceVersion": str(number),
            "uid": f"0000-{number}",
        }
    other = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kube-root-ca.crt", "namespace": "kube-public"},
        "data": {"ca.crt": "-----BEGIN CERTIFICATE-----\n"},
    }
    document = {"apiVersion": "v1", "items": [other, *maps], "kind": "List", "metadata": {}}
    return yaml.safe_dump(document, allow_unicode=True)


def test_what_is_written_is_valid_for_the_check() -> None:
    maps = list(config_maps(GROUPS))
    assert len(maps) == len(EVERY)
    assert check(read("f", listed(maps)), strict=True).findings == ()


@pytest.mark.parametrize("resource", EVERY, ids=lambda one: one.key)
def test_a_vendors_resource_is_one_that_gpushare_translates(resource: Any) -> None:
    assert HAN.search(resource.description_zh)
    if resource.key.startswith("gpushare.io/"):
        assert resource.description
        return
    row = resource.row
    assert row is not None
    assert row in [one for dialect in DIALECTS.values() for one in dialect.rows]
    assert row.key, f"{resource.key} becomes nothing"
    if resource.default:
        row.read(resource.default)  # raises BadValue
