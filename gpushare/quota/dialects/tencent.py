# SPDX-License-Identifier: Apache-2.0
"""Tencent: qGPU, vcuda of gpu-manager, and the elastic GPU framework of before.

Source: Tencent Cloud 457/59103, 457/81034, 457/52079; tkestack/gpu-manager (2023-10);
elastic-ai/elastic-gpu, elastic-gpu-scheduler.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    GIBS,
    MIBS,
    PERCENT,
    PERCENT_OR_CARDS,
    UNITS_OF_256_MIB,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    annotation,
    excludes,
    limit,
    multiple_of,
    needs,
    node_label,
    one_card,
    part_or_cards,
    whole_without,
)
from gpushare.quota.node_settings import APPLIED, POLICY

#: All spellings of the node pool's label.
POLICIES: Final = choice(
    "be, fs, bs or the full names",
    {
        "best-effort": "best-effort",
        "be": "best-effort",
        "fixed-share": "fixed-share",
        "fs": "fixed-share",
        "burst-share": "burst-share",
        "bs": "burst-share",
    },
)
_PLACED: Final = "gpushare ps, gpushare inspect"

QGPU: Final = Dialect(
    "qgpu",
    "Tencent qGPU",
    rows=(
        limit.request(
            "tke.cloud.tencent.com/qgpu-core",
            "Compute: 5 to 100 in steps of 5, or N x 100 for whole cards.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(part_or_cards(least=5, strict=True), multiple_of(5)),
        ),
        limit.request("tke.cloud.tencent.com/qgpu-memory", "Memory of the card.", GIBS, "memory"),
        limit.request(
            "tke.cloud.tencent.com/qgpu-core-greedy",
            "Compute of an offline pod: its part of otherwise idle compute.",
            PERCENT,
            "weight",
        ),
        annotation.option(
            "tke.cloud.tencent.com/app-class",
            "online: requests only memory; other containers of the card wait for it. Or offline.",
            choice("online or offline", {"online": "online", "offline": "offline"}),
            "class",
        ),
        node_label.setting(
            "tke.cloud.tencent.com/qgpu-schedule-policy",
            "Compute policy of the node's cards. Default: best-effort.",
            POLICIES,
            setting=POLICY,
            instead=f"{APPLIED} defaults.policy; gpushare.io/policy of a pod has precedence",
        ),
        node_label.setting(
            "qgpu-device-enable",
            "enable: qGPU manages the node's cards.",
            instead="gpushare setup on the node",
        ),
    ),
    rules=(
        needs("cores", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        needs("weight", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        needs(
            "memory",
            "cores",
            "add tke.cloud.tencent.com/qgpu-core",
            unless=("class=online", "weight"),
        ),
        whole_without("memory"),
        excludes("cores", "class=online", "is not allowed for an online pod", "omit it"),
        excludes("cores", "weight", "conflicts with qgpu-core-greedy", "keep one of the two"),
        one_card("class", "offline"),
    ),
    assumed=(
        ImpliedValue(
            "policy",
            "native-burst-share",
            why="which divides compute that is not guaranteed",
            requires="weight",
        ),
    ),
    equal_requests=True,
    domains=("tke.cloud.tencent.com/qgpu-", "tke.cloud.tencent.com/app-"),
    notes=(
        "qGPU needs a driver up to 450.102.04, 470.161.03, 515.65.01 or 525.89.02.",
        "qGPU uses the node's policy (default best-effort); gpushare's default is fixed-share.",
        "The label takes be, fs and bs. The console's names, as 固定配额, cannot be label values.",
    ),
)

VCUDA: Final = Dialect(
    "vcuda",
    "Tencent vcuda",
    rows=(
        limit.request(
            "tencent.com/vcuda-core",
            "Compute: 1 to 100, or N x 100 for whole cards.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(part_or_cards(),),
        ),
        limit.request(
            "tencent.com/vcuda-memory", "Memory of the card.", UNITS_OF_256_MIB, "memory"
        ),
        annotation.request(
            "tencent.com/vcuda-core-limit",
            "Compute limit; if it exceeds vcuda-core, vcuda-core applies.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(part_or_cards(),),
        ),
        *(
            annotation.record(name, meaning, instead=_PLACED)
            for name, meaning in (
                ("tencent.com/predicate-time", "When the scheduler chose."),
                ("tencent.com/predicate-gpu-idx-{card}", "The cards that it chose."),
                ("tencent.com/gpu-assigned", "Whether gpu-manager has set up the container."),
                ("tencent.com/vcuda-device", "The devices that it created."),
            )
        ),
        node_label.setting(
            "nvidia-device-enable",
            "enable: gpu-manager manages the node's cards.",
            instead="gpushare setup on the node",
        ),
        node_label.setting(
            "gaia.tencent.com/gpu-model",
            "The model of the node's cards.",
            instead="gpushare ls; gpushare.io/allow accepts models",
        ),
    ),
    rules=(needs("cores", "memory", "add tencent.com/vcuda-memory"), whole_without("memory")),
    equal_requests=True,
    domains=("tencent.com/vcuda-",),
    notes=("vcuda-core above 100 must be whole cards: 150 is invalid.",),
)

ELASTIC: Final = Dialect(
    "elasticgpu",
    "Elastic GPU",
    rows=(
        *(
            row
            for domain in ("elasticgpu.com", "elasticgpu.io")
            for row in (
                limit.request(
                    f"{domain}/gpu-core",
                    "Compute: 1 to 100, or N x 100 for whole cards.",
                    PERCENT_OR_CARDS,
                    "cores",
                    rules=(part_or_cards(),),
                ),
                limit.request(f"{domain}/gpu-memory", "Memory of the card.", MIBS, "memory"),
            )
        ),
        annotation.record(
            "elasticgpu.io/egpuc-{container}",
            "The ElasticGPUClaim of a container, which has the request.",
            instead="gpushare.io/container.NAME.memory",
        ),
    ),
    domains=("elasticgpu.com/", "elasticgpu.io/"),
)
