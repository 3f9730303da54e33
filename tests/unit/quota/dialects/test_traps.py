# SPDX-License-Identifier: Apache-2.0
"""What two systems write alike and mean differently."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpushare.quota.dialects import OURS, DialectLayer
from gpushare.quota.dialects.tencent import POLICIES as QGPU_POLICIES
from gpushare.quota.dialects.units import Unit
from gpushare.quota.dialects.volcengine import POLICIES as MGPU_POLICIES
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.keys import KEYS, read, request_from
from gpushare.quota.parse import parse_request
from gpushare.quota.precedence import dialect_conflict, merge_dialects
from gpushare.quota.request import ValueSource
from gpushare.quota.request_policy import Dialects

from .requesting_container import Words, all_said, asked, refusal, said

GIB = 1 << 30
QCORE, QMEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
VCORE, VMEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
MCORE, MMEMORY = "vke.volcengine.com/mgpu-core", "vke.volcengine.com/mgpu-memory"
MCARDS = "vke.volcengine.com/container-multiple-gpu"
PART, WHOLE = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV"


def ours(**texts: str) -> DialectLayer:
    """Return what gpushare's own keys say."""
    source = {key: ValueSource("env", KEYS[key].env) for key in texts}
    return DialectLayer(
        OURS, {key: read(key, source[key], text, KEYS) for key, text in texts.items()}
    )


@pytest.mark.parametrize(
    ("words", "each"),
    [
        ({"limit": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8192"}}, "8GiB"),
        ({"limit": {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "8192"}}, "8GiB"),
        ({"env": {"CUDA_DEVICE_MEMORY_LIMIT": "8g", "NVIDIA_VISIBLE_DEVICES": "0,1"}}, "8GiB"),
        (
            {
                "env": {
                    "AMP_VGPU_ENABLE": "1",
                    "GPU_MEM_PER_DEVICE": str(8 * GIB),
                    "NVIDIA_VISIBLE_DEVICES": "0,1",
                }
            },
            "8GiB",
        ),
        ({"limit": {"aliyun.com/gpu-mem": "8"}, "label": {"aliyun.com/gpu-count": "2"}}, "4GiB"),
        ({"limit": {MCORE: "60", MMEMORY: "8192"}, "annotation": {MCARDS: "2"}}, "4GiB"),
    ],
)
def test_memory_is_of_each_card_to_some_and_of_all_to_others(words: Words, each: str) -> None:
    assert asked(words)["memory"] == each


@pytest.mark.parametrize(
    ("words", "memory"),
    [
        ({"limit": {QCORE: "30", QMEMORY: "8"}}, "8GiB"),
        ({"limit": {"aliyun.com/gpu-mem": "8"}}, "8GiB"),
        ({"limit": {VCORE: "30", VMEMORY: "8"}}, "2GiB"),
        ({"limit": {"nvidia.com/gpumem": "8"}}, "8MiB"),
        ({"limit": {"volcano.sh/vgpu-memory": "8"}}, "8MiB"),
        ({"limit": {"elasticgpu.io/gpu-memory": "8"}}, "8MiB"),
        ({"env": {"AMP_VGPU_ENABLE": "1", "GPU_MEM_PER_DEVICE": "8"}}, "8B"),
        ({"env": {"CUDA_DEVICE_MEMORY_LIMIT": "8"}}, "8B"),
    ],
)
def test_one_number_is_as_many_sizes_as_there_are_units(words: Words, memory: str) -> None:
    assert asked(words)["memory"] == memory


def test_a_number_may_be_a_part_of_another_and_no_size() -> None:
    assert asked({"env": {PART: "8", WHOLE: "32"}}) == {"memory-percent": "25"}


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
    given = resolve_request(request_from(said(words).layer))
    assert (given.kind, given.count) == ("exclusive", 1)


@pytest.mark.parametrize("words", [{QCORE: "200"}, {VCORE: "200"}, {MCORE: "200"}])
def test_200_are_two_whole_cards(words: Mapping[str, str]) -> None:
    given = resolve_request(request_from(said({"limit": words}).layer))
    assert (given.kind, given.count) == ("exclusive", 2)


def test_memory_without_cores_is_any_compute_to_hami() -> None:
    layer = said({"limit": {"nvidia.com/gpumem": "1024"}}).layer
    given = resolve_request(request_from(layer))
    assert (given.kind, given.cores, given.policy) == ("shared", 0, "best-effort")


def test_memory_without_cores_is_shared_compute_to_ack() -> None:
    given = resolve_request(request_from(said({"limit": {"aliyun.com/gpu-mem": "4"}}).layer))
    assert (given.kind, given.cores, given.policy) == ("shared", 0, "best-effort")


@pytest.mark.parametrize(("name", "text"), [(QMEMORY, "4"), (MMEMORY, "4096")])
def test_memory_without_cores_is_an_error_to_qgpu_and_mgpu(name: str, text: str) -> None:
    assert "requires cores" in refusal({"limit": {name: text}})


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


@pytest.mark.parametrize("unit", [QGPU_POLICIES, MGPU_POLICIES])
@pytest.mark.parametrize(
    "text",
    [
        "fixed-shareguaranteed-burst-sharenative-burst-share",
        "fixed-share,burst-share",
        "Fixed-Share",
        "fixed_share",
        "FS",
        "",
    ],
)
def test_a_policy_that_is_misspelt_or_several_is_no_policy(unit: Unit, text: str) -> None:
    with pytest.raises(BadValue, match="not a valid value"):
        unit.read(text)
