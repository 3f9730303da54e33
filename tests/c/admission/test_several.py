# SPDX-License-Identifier: Apache-2.0
"""The policy that warns of requests for several cards, which mode plugin does not translate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus.cases import CASES
from tests.corpus.pods import pods

from .rendered import deployment, warned
from .test_translation import TYPICAL, container, pod_of

pytestmark = pytest.mark.needs("admission")
TWO = {**TYPICAL, "nvidia.com/gpu": "2"}
SEVERAL: list[dict[str, Any]] = [
    pod_of(container(TWO)),
    pod_of(container(TYPICAL, "first"), container(TWO)),
    pod_of(initContainers=[container(TWO)]),
    pod_of(container({"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"})),
    pod_of(container({"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "4096"})),
    pod_of(
        container({"aliyun.com/gpu-mem": "8"}), metadata={"labels": {"aliyun.com/gpu-count": "2"}}
    ),
]
ONE = [
    pod_of(container(TYPICAL)),
    pod_of(container({"nvidia.com/gpu": "2"})),  # NVIDIA's own plugin serves it
    pod_of(container({"tencent.com/vcuda-core": "100"})),
    pod_of(container()),
]


def warnings(*objects: dict[str, Any]) -> list[str]:
    return warned("plugin", "severaladmissionpolicy.yaml", "gpushare-several-cards", objects)


def test_several_cards_are_warned_of_by_name_and_nothing_else_is() -> None:
    for said in warnings(*SEVERAL):
        assert "several cards for container main" in said
        assert "mode dra" in said
    assert not any(warnings(*ONE))


def test_of_the_corpus_those_for_several_cards_are_warned_of() -> None:
    found = {str(case) for case in CASES if pods(case) and any(warnings(*pods(case)))}
    assert found == {
        "alibaba/two-cards",
        "hami/percentage",
        "hami/whole-cards",
        "tencent/qgpu-whole",
        "volcengine/multiple",
    }


def test_the_warning_is_seen_when_a_deployment_or_a_cron_job_is_applied() -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod_of(container(TWO))["spec"]}
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}},
    }
    assert all("several cards" in said for said in warnings(deployment(template), cron))
