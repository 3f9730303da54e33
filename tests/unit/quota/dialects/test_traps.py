# SPDX-License-Identifier: Apache-2.0
"""What two systems write alike and mean differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pytest

from gpushare.quota.dialects import (
    OURS,
    TABLES,
    DialectLayer,
    DialectRequest,
    KeyLocation,
    combine,
)
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS, read, request_from
from gpushare.quota.parse import parse_request
from gpushare.quota.precedence import dialect_conflict, merge_dialects
from gpushare.quota.request import ValueSource
from gpushare.quota.request_policy import Dialects

GIB = 1 << 30
QCORE, QMEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
VCORE, VMEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
MCORE, MMEMORY = "vke.volcengine.com/mgpu-core", "vke.volcengine.com/mgpu-memory"
MCARDS = "vke.volcengine.com/container-multiple-gpu"
PART, WHOLE = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV"


Words: TypeAlias = Mapping[KeyLocation, Mapping[str, str]]


def all_said(words: Words) -> list[DialectRequest]:
    """Return what `words` say, by dialect."""
    found = [word for where, values in words.items() for word in TABLES.find(where, values)]
    return combine(found, strict=True, position=0)


def ours(**texts: str) -> DialectLayer:
    """Return what gpushare's own keys say."""
    source = {key: ValueSource("env", KEYS[key].env) for key in texts}
    return DialectLayer(
        OURS, {key: read(key, source[key], text, KEYS) for key, text in texts.items()}
    )


def test_a_number_without_a_unit_is_no_size_of_ours() -> None:
    with pytest.raises(QuotaError, match="has no unit: 8 bytes or 8 GiB"):
        ours(memory="8")


@pytest.mark.parametrize(
    "words",
    [
        {"limit": {QCORE: "100"}},
        {"limit": {VCORE: "100"}},
        {"limit": {MCORE: "100"}},
        {"limit": {"nvidia.com/gpucores": "100"}},
        {"limit": {"volcano.sh/vgpu-cores": "100"}},
        {"env": {"CUDA_DEVICE_SM_LIMIT": "100"}},
    ],
)
def test_100_is_a_whole_card_for_one_container(words: Words) -> None:
    given = resolve_request(request_from(all_said(words)[0].layer))
    assert (given.kind, given.count) == ("exclusive", 1)


@pytest.mark.parametrize("name", ["nvidia.com/gpumem", "aliyun.com/gpu-mem"])
def test_memory_without_cores_is_any_compute(name: str) -> None:
    given = resolve_request(request_from(all_said({"limit": {name: "1024"}})[0].layer))
    assert (given.kind, given.cores, given.policy) == ("shared", 0, "best-effort")


TWO: Words = {
    "env": {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "30", PART: "1", WHOLE: "4"}
}


def test_two_dialects_at_once_are_refused_by_a_strict_node() -> None:
    both = [DialectLayer(one.dialect.title, one.layer) for one in all_said(TWO)]
    conflict = dialect_conflict(both)
    assert conflict is not None
    assert "CUDA_DEVICE_MEMORY_LIMIT" in str(conflict.error)
    assert PART in str(conflict.error)
    assert conflict.error.fix.startswith("keep one of the two")


def test_of_two_dialects_a_lenient_node_uses_the_smaller_request_and_notes_it() -> None:
    [spoken] = all_said({"env": {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_SM_LIMIT": "30"}})
    hami = DialectLayer(spoken.dialect.title, spoken.layer)
    mine = ours(memory="2GiB", cores="40")
    for order in ((mine, hami), (hami, mine)):
        both = merge_dialects(order)
        assert {key: one.text for key, one in both.layer.items()} == {
            "memory": "2GiB",
            "cores": "30",
        }
        assert len(both.notes) == 2
        assert any(
            'CUDA_DEVICE_MEMORY_LIMIT "4g" was not applied: '
            'env GPUSHARE_MEMORY "2GiB" requests less' in one
            for one in both.notes
        )


def test_of_a_whole_card_and_a_part_a_lenient_node_takes_the_part() -> None:
    [spoken] = all_said({"env": {"CUDA_DEVICE_SM_LIMIT": "100"}})
    whole = DialectLayer(spoken.dialect.title, spoken.layer)
    both = merge_dialects((whole, ours(memory="2GiB")))
    given = resolve_request(request_from(both.layer))
    assert (given.kind, given.memory_bytes) == ("shared", 2 * GIB)
    assert both.notes


#: A request of an image's for 4 GiB.
IMAGES = (
    {"CUDA_DEVICE_MEMORY_LIMIT": "4g"},
    {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"},
    {"AMP_VGPU_ENABLE": "1", "GPU_MEM_PER_DEVICE": str(4 * GIB)},
    {"NVIDIA_GPU_MEMORY_REQUEST": "4096"},
)


@pytest.mark.parametrize("env", IMAGES, ids=lambda env: next(iter(env)))
def test_variables_of_an_image_shrink_a_grant_and_never_enlarge_it(env: dict[str, str]) -> None:
    larger = parse_request({"gpushare.io/memory": "8GiB"}, env, dialects=Dialects()).valid()
    assert larger.memory_bytes == 4 * GIB
    smaller = parse_request({"gpushare.io/memory": "2GiB"}, env, dialects=Dialects()).valid()
    assert smaller.memory_bytes == 2 * GIB
    assert any("was not applied" in note for note in smaller.notes)


@pytest.mark.parametrize("env", IMAGES, ids=lambda env: next(iter(env)))
def test_an_image_asks_for_nothing_where_the_environment_may_only_shrink(
    env: dict[str, str],
) -> None:
    for trust in ("reduce", "ignore"):
        quota = parse_request({}, env, trust=trust, dialects=Dialects()).valid()
        assert not quota.requested
        assert quota.notes


def test_cards_that_a_scheduler_noted_are_no_requests_of_containers() -> None:
    pod = {
        "io.kubernetes.cri.container-name": "c1",
        "vke.volcengine.com/gpu-index-container-c1": "0,1",
        "vke.volcengine.com/gpu-index-container-c2": "2",
        MCARDS: "2",
    }
    with pytest.raises(QuotaError, match="Resource limits are not passed"):
        parse_request(pod, {}, dialects=Dialects()).valid()
