# SPDX-License-Identifier: Apache-2.0
"""Vendors' keys that an admission policy recorded, which a node reads as the manifest's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import QuotaRequest, RequestedValue
from gpushare.quota.request_policy import DialectMode, Dialects

NAME = "io.kubernetes.cri.container-name"
HAMI = (
    "position 0\nlimit nvidia.com/gpu=1\nlimit nvidia.com/gpumem=4096\nlimit nvidia.com/gpucores=30"
)


def read(
    text: str,
    beside: Mapping[str, str] | None = None,
    *,
    container: str = "main",
    env: dict[str, str] | None = None,
    mode: DialectMode = "lenient",
) -> QuotaRequest:
    texts = {"gpushare.io/container.main.vendor": text, **(beside or {})}
    return parse_request(
        {**texts, NAME: container},
        env or {},
        of_pod=texts,
        defaults=Defaults(),
        dialects=Dialects(mode=mode),
    ).valid()


def rows(layer: Mapping[str, RequestedValue]) -> dict[str, str]:
    return {key: f"{one.text} {one.source}" for key, one in layer.items()}


def test_limits_request_for_the_container_that_is_named() -> None:
    found = read(HAMI)
    assert found.requested["memory"].shown == "4096"
    assert rows(found.requested) == {
        "count": "1 limit nvidia.com/gpu",
        "memory": "4GiB limit nvidia.com/gpumem",
        "cores": "30 limit nvidia.com/gpucores",
    }
    assert not read(HAMI, container="proxy").requested


def test_what_the_pod_says_in_its_environment_is_no_images_choice() -> None:
    text = f"{HAMI}\nenv GPU_CORE_UTILIZATION_POLICY=disable"
    env = {"GPU_CORE_UTILIZATION_POLICY": "disable"}
    assert read(text, env=env).requested["policy"].value == "best-effort"
    assert "policy" not in read(HAMI, env=env).requested


def test_an_image_may_still_shrink_what_is_recorded() -> None:
    memory = read(HAMI, env={"CUDA_DEVICE_MEMORY_LIMIT": "1g"}).requested["memory"]
    assert memory.text == "1GiB"


def test_annotations_beside_the_record_count_once() -> None:
    text = f"{HAMI}\nannotation nvidia.com/use-gputype=A100"
    found = read(text, {"nvidia.com/use-gputype": "A100"})
    assert found.requested["allow"].value == ("A100",)
    assert not [note for note in found.notes if "was not applied" in note]


def test_our_own_keys_beside_it_are_a_second_dialect() -> None:
    ours = {"gpushare.io/container.main.memory": "2GiB"}
    assert read(HAMI, ours).requested["memory"].text == "2GiB"
    with pytest.raises(QuotaError, match=r"uses gpushare keys, and limit nvidia\.com/gpu "):
        read(HAMI, ours, mode="strict")


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "limit nvidia.com/gpumem",
        "node nvidia.com/gpu=1",
        "position x",
        "position " + "9" * 5000,
        "position \u0661",
        "",
    ],
)
def test_a_line_that_no_policy_writes_is_refused(line: str) -> None:
    with pytest.raises(QuotaError, match=r"container\.main\.vendor.*which is no vendor's key"):
        read(f"{HAMI}\n{line}\nlimit nvidia.com/priority=1")


LINES = st.tuples(
    st.sampled_from(["position ", "limit ", "label ", "annotation ", "env ", ""]),
    st.sampled_from(["nvidia.com/gpumem=", "aliyun.com/gpu-count=", "gpu-fraction=", ""]),
    st.text(max_size=12) | st.integers().map(str),
).map("".join)


@given(st.lists(LINES, max_size=6).map("\n".join))
def test_whatever_an_author_writes_is_a_request_or_refused(text: str) -> None:
    with contextlib.suppress(QuotaError):
        assert all(one.source.kind != "default" for one in read(text).requested.values())
