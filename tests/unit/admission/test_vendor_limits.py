# SPDX-License-Identifier: Apache-2.0
"""Vendors' limits that a mutating policy recorded are refused as a node refuses them."""

from __future__ import annotations

from typing import Final

import pytest
from packages.validating_policy import STRICTNESS, Strictness
from packages.vendor_limits import vendor_limits

from gpushare.quota.request_policy import Dialects, RequestPolicy

from .test_validating import on_node, pod, refused

NODES: Final = {one: RequestPolicy(dialects=Dialects(mode=one)) for one in STRICTNESS}
NUMBERS: Final = (0, 1, 30, 257)


def recorded(limits: dict[str, int]) -> dict[str, str]:
    lines = ["position 0", *(f"limit {name}={number}" for name, number in limits.items())]
    return {"gpushare.io/container.train.vendor": "\n".join(lines)}


@pytest.mark.parametrize("strictness", STRICTNESS)
def test_a_limit_is_refused_only_where_a_node_refuses_it(strictness: Strictness) -> None:
    for name in vendor_limits(strict=True).accepted:
        for number in NUMBERS:
            body = pod(recorded({name: number}))
            assert not refused(body, strictness) or list(on_node(body, NODES[strictness])), name


@pytest.mark.parametrize(
    ("limits", "strictness", "expected"),
    [
        ({"nvidia.com/gpucores": 101}, "lenient", ""),
        ({"aliyun.com/gpu-mem": 0}, "lenient", ""),
        ({"volcano.sh/vgpu-number": 17}, "lenient", ""),
        ({"volcano.sh/gpu-core.percentage": 30}, "lenient", ""),
        ({"aliyun.com/gpu-core.percentage": 30}, "strict", ""),
        ({"vke.volcengine.com/mgpu-core": 30}, "strict", ""),
        ({"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 4}, "strict", ""),
        (
            {"tke.cloud.tencent.com/qgpu-core": 130, "tke.cloud.tencent.com/qgpu-memory": 4},
            "strict",
            (
                "limit tke.cloud.tencent.com/qgpu-core=130 (Tencent qGPU): not percent of a card, "
                "or N x 100 for N whole cards. Write 5 to 100 in steps of 5, or 200 to 1600 in "
                "steps of 100."
            ),
        ),
    ],
)
def test_messages_are_those_of_the_node_or_say_which_numbers_are_right(
    limits: dict[str, int], strictness: Strictness, expected: str
) -> None:
    body = pod(recorded(limits))
    [of_node] = on_node(body, NODES[strictness])
    assert refused(body, strictness) == [expected or of_node]


@pytest.mark.parametrize("line", ["label a=b", "annotation a=b", "env A=b", "limit a=x"])
def test_keys_in_other_places_may_change_what_a_limit_means(line: str) -> None:
    annotations = recorded({"nvidia.com/gpucores": 101})
    [(name, text)] = annotations.items()
    assert refused(pod({name: f"{text}\n{line}"}), "strict") == []
    assert refused(pod(annotations), "strict") != []
