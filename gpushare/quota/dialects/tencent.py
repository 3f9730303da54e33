# SPDX-License-Identifier: Apache-2.0
"""Tencent: qGPU, and vcuda of gpu-manager.

Source: Tencent Cloud 457/59103, 457/81034; tkestack/gpu-manager (2023-10).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.rules import Needs, PartOrCards, Step, WholeWithout
from gpushare.quota.dialects.units import GIBS, PERCENT_OR_CARDS, UNITS_OF_256_MIB, choice

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
            "Memory of the card, in whole GiB.",
            GIBS,
            "memory",
        ),
        Row(
            "tke.cloud.tencent.com/qgpu-schedule-policy",
            "node label",
            "node",
            "Policy of the node's cards.",
            POLICIES,
            instead="defaults.policy of gpushare.yaml, or gpushare.io/policy",
        ),
        Row(
            "tke.cloud.tencent.com/app-class",
            "annotation",
            "says",
            "online or offline: who waits.",
            choice("online or offline", {"online": "online", "offline": "offline"}),
            "class",
        ),
    ),
    rules=(
        Needs("cores", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        Needs("memory", "cores", "add tke.cloud.tencent.com/qgpu-core"),
        WholeWithout("memory"),
    ),
    translated_by="nothing on this node; gpushare convert writes annotations, which do",
    equal_requests=True,
    domains=("tke.cloud.tencent.com/qgpu-",),
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
            "Memory, in units of 256 MiB.",
            UNITS_OF_256_MIB,
            "memory",
        ),
    ),
    translated_by="nothing on this node; gpushare convert writes annotations, which do",
    equal_requests=True,
    domains=("tencent.com/vcuda-",),
)
