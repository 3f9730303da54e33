# SPDX-License-Identifier: Apache-2.0
"""Huawei Cloud CCE: virtual GPUs of its Volcano, over xGPU.

Source: CCE's manual, "Using GPU Virtualization", "Equal Distribution Scheduling on Virtual GPUs",
"Kubernetes' Default GPU Scheduling in GPU Virtualization"; hce_xgpu_0003.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    CARDS,
    PART_BESIDE_CARDS,
    PERCENT_OR_CARDS,
    UNITS_OF_128_MIB,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    label,
    limit,
    needs,
    node_file,
    step_each,
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
        limit.request(
            "volcano.sh/gpu-mem.128Mi",
            "Memory of all cards together, in units of 128 MiB.",
            UNITS_OF_128_MIB,
            "memory",
            summed=True,
        ),
        limit.request(
            "volcano.sh/gpu-core.percentage",
            "Compute of all cards together, in steps of 5; 100 is a whole card.",
            PERCENT_OR_CARDS,
            "cores",
            summed=True,
        ),
        label.option(
            "volcano.sh/gpu-num", "Number of cards to divide memory and compute by.", CARDS, "count"
        ),
        limit.request(
            "nvidia.com/gpu",
            "Fraction of a card's memory; whole numbers are whole cards.",
            PART_BESIDE_CARDS,
            "memory-percent",
        ),
        node_file.setting(
            "/proc/xgpu/{card}/policy",
            "0 native, 1 fixed, 2 average, 3 preempt, 4 weighted preempt, 5 hybrid, 6 weakly "
            "weighted.",
            _POLICY,
            instead="defaults.policy of gpushare.yaml, or gpushare card policy",
        ),
    ),
    rules=(
        needs("cores", "memory", "add volcano.sh/gpu-mem.128Mi", strict=False),
        step_each("cores", 5),
    ),
    equal_requests=True,
    domains=("volcano.sh/gpu-",),
    notes=("volcano.sh/gpu-mem.128Mi must divide into whole units of 128 MiB on each card.",),
)
