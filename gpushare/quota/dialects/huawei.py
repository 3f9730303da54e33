# SPDX-License-Identifier: Apache-2.0
"""Huawei Cloud CCE: virtual GPUs of its Volcano, over xGPU.

Source: CCE's manual, "Using GPU Virtualization", "Equal Distribution Scheduling on Virtual GPUs",
"Kubernetes' Default GPU Scheduling in GPU Virtualization"; hce_xgpu_0003.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.rules import Needs, StepEach
from gpushare.quota.dialects.units import (
    CARDS,
    PART_BESIDE_CARDS,
    PERCENT_OR_CARDS,
    UNITS_OF_128_MIB,
    choice,
)

_POLICY: Final = choice(
    "0 to 6",
    {
        "0": "best-effort",
        "1": "fixed-share",
        "2": "best-effort",
        "3": "best-effort",
        "4": "native-burst-share",
        "5": "burst-share",
        "6": "native-burst-share",
    },
)

HUAWEI: Final = Dialect(
    "huawei",
    "Huawei CCE",
    rows=(
        Row(
            "volcano.sh/gpu-mem.128Mi",
            "limit",
            "asks",
            "Memory in units of 128 MiB, of all cards together.",
            UNITS_OF_128_MIB,
            "memory",
            total=True,
        ),
        Row(
            "volcano.sh/gpu-core.percentage",
            "limit",
            "asks",
            "Compute in steps of 5, of all cards together; 100 is a whole card.",
            PERCENT_OR_CARDS,
            "cores",
            total=True,
        ),
        Row("volcano.sh/gpu-num", "label", "says", "Cards to divide them by.", CARDS, "count"),
        Row(
            "nvidia.com/gpu",
            "limit",
            "asks",
            "A part of a card's memory as a decimal; whole numbers are whole cards.",
            PART_BESIDE_CARDS,
            "memory-percent",
        ),
        Row(
            "/proc/xgpu/{card}/policy",
            "node file",
            "node",
            "0 native, 1 fixed, 2 average, 3 preempt, 4 weighted preempt, 5 hybrid, 6 weakly "
            "weighted.",
            _POLICY,
            instead="defaults.policy of gpushare.yaml, or gpushare card policy",
        ),
    ),
    rules=(
        Needs("cores", "memory", "add volcano.sh/gpu-mem.128Mi", strict=False),
        StepEach("cores", 5),
    ),
    equal_requests=True,
    domains=("volcano.sh/gpu-",),
    notes=("One unit of volcano.sh/gpu-mem.128Mi is 128 MiB, and so must be each card's part.",),
)
