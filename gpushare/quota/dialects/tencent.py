# SPDX-License-Identifier: Apache-2.0
"""Tencent: qGPU, vcuda of gpu-manager, and the elastic GPU framework of before.

Source: Tencent Cloud 457/59103, 457/81034, 457/52079; tkestack/gpu-manager (2023-10);
elastic-ai/elastic-gpu, elastic-gpu-scheduler.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row
from gpushare.quota.dialects.rules import (
    Excludes,
    Needs,
    OneCard,
    PartOrCards,
    Step,
    WholeWithout,
)
from gpushare.quota.dialects.units import (
    GIBS,
    MIBS,
    PERCENT,
    PERCENT_OR_CARDS,
    TEXT,
    UNITS_OF_256_MIB,
    choice,
)

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
        Row(
            "tke.cloud.tencent.com/qgpu-core",
            "limit",
            "asks",
            "Compute: 5 to 100 in steps of 5, or N x 100 for whole cards.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(PartOrCards(least=5, strict=True), Step(5)),
        ),
        Row(
            "tke.cloud.tencent.com/qgpu-memory",
            "limit",
            "asks",
            "Memory of the card.",
            GIBS,
            "memory",
        ),
        Row(
            "tke.cloud.tencent.com/qgpu-core-greedy",
            "limit",
            "asks",
            "Compute of an offline pod: its part of what the others leave.",
            PERCENT,
            "weight",
        ),
        Row(
            "tke.cloud.tencent.com/app-class",
            "annotation",
            "says",
            "online: asks for memory alone, and the others of the card wait for it; or offline.",
            choice("online or offline", {"online": "online", "offline": "offline"}),
            "class",
        ),
        Row(
            "tke.cloud.tencent.com/qgpu-schedule-policy",
            "node label",
            "node",
            "How compute is held on the node's cards; best-effort without it.",
            POLICIES,
            instead="defaults.policy, or gpushare.io/policy",
        ),
        Row(
            "qgpu-device-enable",
            "node label",
            "node",
            "enable: the node's cards are qGPU's.",
            TEXT,
            instead="gpushare setup on the node",
        ),
    ),
    rules=(
        Needs("cores", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        Needs("weight", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        Needs(
            "memory",
            "cores",
            "add tke.cloud.tencent.com/qgpu-core",
            unless=("class=online", "weight"),
        ),
        WholeWithout("memory"),
        Excludes("cores", "class=online", "is for a pod that is not online", "leave it out"),
        Excludes("cores", "weight", "is beside qgpu-core-greedy", "keep one of the two"),
        OneCard("class", "offline"),
    ),
    assumed=(
        Assumed(
            "policy",
            "native-burst-share",
            why="which divides what nobody is guaranteed",
            beside="weight",
        ),
    ),
    equal_requests=True,
    domains=("tke.cloud.tencent.com/qgpu-", "tke.cloud.tencent.com/app-"),
    notes=(
        "qGPU needs a driver up to 450.102.04, 470.161.03, 515.65.01 or 525.89.02.",
        "qGPU's policy is its node's, best-effort without a label; gpushare's is fixed-share.",
    ),
)

VCUDA: Final = Dialect(
    "vcuda",
    "Tencent vcuda",
    rows=(
        Row(
            "tencent.com/vcuda-core",
            "limit",
            "asks",
            "Compute: 1 to 100, or N x 100 for whole cards.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(PartOrCards(),),
        ),
        Row(
            "tencent.com/vcuda-memory",
            "limit",
            "asks",
            "Memory of the card.",
            UNITS_OF_256_MIB,
            "memory",
        ),
        Row(
            "tencent.com/vcuda-core-limit",
            "annotation",
            "asks",
            "The most compute that it may use; where it is more than vcuda-core, that holds.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(PartOrCards(),),
        ),
        *(
            Row(name, "annotation", "kept", meaning, TEXT, instead=_PLACED)
            for name, meaning in (
                ("tencent.com/predicate-time", "When the scheduler chose."),
                ("tencent.com/predicate-gpu-idx-{card}", "The cards that it chose."),
                ("tencent.com/gpu-assigned", "Whether gpu-manager has made the container."),
                ("tencent.com/vcuda-device", "The devices that it made."),
            )
        ),
        Row(
            "nvidia-device-enable",
            "node label",
            "node",
            "enable: the node's cards are gpu-manager's.",
            TEXT,
            instead="gpushare setup on the node",
        ),
        Row(
            "gaia.tencent.com/gpu-model",
            "node label",
            "node",
            "The model of the node's cards.",
            TEXT,
            instead="gpushare ls; gpushare.io/allow takes models",
        ),
    ),
    rules=(
        Needs("cores", "memory", "add tencent.com/vcuda-memory"),
        WholeWithout("memory"),
    ),
    equal_requests=True,
    domains=("tencent.com/vcuda-",),
    notes=("vcuda-core of more than 100 is whole cards only: 150 is nothing.",),
)

ELASTIC: Final = Dialect(
    "elasticgpu",
    "Elastic GPU",
    rows=(
        *(
            row
            for domain in ("elasticgpu.com", "elasticgpu.io")
            for row in (
                Row(
                    f"{domain}/gpu-core",
                    "limit",
                    "asks",
                    "Compute: 1 to 100, or N x 100 for whole cards.",
                    PERCENT_OR_CARDS,
                    "cores",
                    rules=(PartOrCards(),),
                ),
                Row(
                    f"{domain}/gpu-memory",
                    "limit",
                    "asks",
                    "Memory of the card.",
                    MIBS,
                    "memory",
                ),
            )
        ),
        Row(
            "elasticgpu.io/egpuc-{container}",
            "annotation",
            "kept",
            "The ElasticGPUClaim of a container, which has the request.",
            TEXT,
            instead="gpushare.io/container.NAME.memory",
        ),
    ),
    domains=("elasticgpu.com/", "elasticgpu.io/"),
)
