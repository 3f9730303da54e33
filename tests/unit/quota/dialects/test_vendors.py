# SPDX-License-Identifier: Apache-2.0
"""What each vendor's keys come to: the canonical request, or why they are refused."""

from __future__ import annotations

import pytest

from gpushare.quota.dialects import DIALECTS, combine
from gpushare.quota.dialects.tencent import POLICIES as QGPU_POLICIES
from gpushare.quota.dialects.units import Unit
from gpushare.quota.dialects.volcengine import POLICIES as MGPU_POLICIES
from gpushare.quota.errors import BadValue
from tests.corpus import vendor_keys


def test_nodes_make_of_vendors_keys_what_is_expected() -> None:
    """After a change that is meant, `python -m tests.corpus update` writes it."""
    assert vendor_keys.text() == vendor_keys.FILE.read_text(encoding="utf-8")


def test_every_key_is_among_them_and_has_a_meaning() -> None:
    """But for the settings and the annotations of nodes."""
    tried = set()
    for keys in vendor_keys.containers():
        tried |= {id(value.row) for value in keys.values}
        for one in combine(keys.values, strict=False, position=keys.position):
            if not one.layer and not one.problems:
                assert all(one.meant.get(word.name) for word in one.words), keys.line
    rows = [(name, row) for name, dialect in DIALECTS.items() for row in dialect.rows]
    assert not [
        (name, row.where, row.name)
        for name, row in rows
        if id(row) not in tried and row.role != "setting" and row.where != "node annotation"
    ]


@pytest.mark.parametrize(
    ("line", "name", "meaning"),
    [
        ("CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DISABLE_CONTROL=true", "", "the quota stays in effect"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER=1 CGPU_DISABLE=true", "", "the quota stays in effect"),
        ("hami.io/gpu-scheduler-policy=mutex", "", "gpushare.io/cores=100"),
        ("@side", "nvidia.com/container.main.gpu-memory.request", 'for container "main"'),
        ("@1 @side annotation: gpu-memory=4096", "", "for the first container of the pod"),
    ],
)
def test_why_a_key_requests_nothing_is_said(line: str, name: str, meaning: str) -> None:
    words = line.split()
    keys = next(one for one in vendor_keys.containers() if set(words) <= set(one.line.split()))
    [found] = combine(keys.values, strict=False, position=keys.position, container=keys.container)
    assert meaning in found.meant[name or words[-1].partition("=")[0]]


@pytest.mark.parametrize(
    ("unit", "texts"),
    [
        (QGPU_POLICIES, {"be": "best-effort", "fs": "fixed-share", "bs": "burst-share"}),
        (MGPU_POLICIES, {"guaranteed-burst-share": "burst-share"}),
    ],
)
def test_policies_of_the_nodes_have_names_of_their_own(unit: Unit, texts: dict[str, str]) -> None:
    for text, policy in texts.items():
        assert unit.read(text) == policy
    for text in ("fixed-share,burst-share", "Fixed-Share", "fixed_share", "FS", ""):
        with pytest.raises(BadValue, match="not a valid value"):
            unit.read(text)
