# SPDX-License-Identifier: Apache-2.0
"""Alauda's ConfigMaps of extended resources, by their schema."""

from __future__ import annotations

import pytest

from .test_check import findings, told

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


def test_a_configmap_of_alauda_that_is_right() -> None:
    assert findings(ALAUDA) == []


def test_its_name_may_omit_the_domain_of_the_key() -> None:
    """Alauda's own document has this name for the key tencent.com/vcuda-core."""
    assert findings(ALAUDA.replace("tencent-com-", "")) == []


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
    assert told(ALAUDA.replace(old, new)) == [expected]
