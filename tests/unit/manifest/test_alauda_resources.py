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

from . import test_check as checking

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


ALAUDA = """\
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: cf-crl-gpu-manager-tencent-com-vcuda-core
      namespace: kube-public
      labels:
        features.alauda.io/type: CustomResourceLimitation
        features.alauda.io/group: gpu-manager
        features.alauda.io/enabled: "true"
    data:
      key: tencent.com/vcuda-core
      dataType: integer
      defaultValue: "20"
      descriptionZh: "..."
      descriptionEn: "..."
      group: gpu-manager
      limits: optional
      requests: fromLimits
"""


WRONG = r"""
namespace: kube-public => namespace: default => 5:14: metadata.namespace=default: not a valid value.
    Write kube-public.
vcuda-core\n      namespace => vcuda-memory\n      namespace => 4:9:
    metadata.name=cf-crl-gpu-manager-tencent-com-vcuda-memory: must end with its key,
    tencent-com-vcuda-core. Write cf-crl-NAME-tencent-com-vcuda-core.
name: cf-crl-gpu => name: gpu => 4:9: metadata.name=gpu-manager-tencent-com-vcuda-core: has the
    wrong form. Write cf-crl-NAME-KEY in small letters, with - for all else.
group: gpu-manager\n        features.alauda.io/enabled: "true" => group: gpu-manager => 7:5:
    metadata.labels: has no features.alauda.io/enabled. Add features.alauda.io/enabled: true.
CustomResourceLimitation => Custom => 7:30: label features.alauda.io/type=Custom: not a valid value.
    Write CustomResourceLimitation.
limits: optional => limits: optionally => 17:11: data.limits=optionally: not a valid value. Write
    one of disabled, required, optional; did you mean optional?
requests: fromLimits => requests: optional => 18:13: data.requests=optional: not a valid value.
    Write one of disabled, required, fromLimits.
group: gpu-manager\n      limits => group: other\n      limits => 16:10:
    data.group=other: differs from the label features.alauda.io/group, "gpu-manager". Write
    gpu-manager.
vcuda-core\n      dataType: integer => vcuda-core => 11:3: data: has no dataType. Add dataType.
"20" => 20 => 13:17: data.defaultValue=20: a number, but must be text. Write "20".
"""


@pytest.mark.parametrize("row", WRONG.replace("\n    ", " ").strip().splitlines())
def test_errors_in_a_configmap_of_alauda_are_found(row: str) -> None:
    old, new, expected = row.replace(r"\n", "\n").split(" => ")
    assert ALAUDA.count(old) == 1
    assert checking.told(ALAUDA.replace(old, new)) == [expected]
