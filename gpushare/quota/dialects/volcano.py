# SPDX-License-Identifier: Apache-2.0
"""The keys of volcano.sh: Volcano's own vGPU, and Huawei Cloud CCE, which runs Volcano."""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    CARDS,
    MIBS_OR_ALL,
    NAMES,
    PART_BESIDE_CARDS,
    PERCENT_OR_ANY,
    PERCENT_OR_CARDS,
    UNITS_OF_128_MIB,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    annotation,
    label,
    limit,
    needs,
    node_file,
    not_both,
    step_each,
)

# Volcano's vGPU: HAMi's device plugin behind Volcano's scheduler, under names of its own.
# Source: volcano-sh/volcano 2026-08 (pkg/scheduler/api/devices/nvidia/vgpu), its device plugin.
_MODE: Final = choice(
    "hami-core, mig or mps", {"hami-core": "interposer", "mig": "mig", "mps": "mps"}
)

VOLCANO: Final = Dialect(
    "volcano",
    "Volcano vGPU",
    rows=(
        limit.request("volcano.sh/vgpu-number", "Physical cards, each shared.", CARDS, "count"),
        limit.request(
            "volcano.sh/vgpu-memory",
            "Memory of each card, times the plugin's memory factor; 0 is all of it.",
            MIBS_OR_ALL,
            "memory",
        ),
        limit.request(
            "volcano.sh/vgpu-memory-percentage",
            "Memory of each card, in percent.",
            PERCENT_OR_ANY,
            "memory-percent",
        ),
        limit.request(
            "volcano.sh/vgpu-cores",
            "Compute of each card; 100 is a whole one, 0 any.",
            PERCENT_OR_ANY,
            "cores",
        ),
        annotation.option("volcano.sh/vgpu-use-gpuuuid", "Only these cards.", NAMES, "allow"),
        annotation.option("volcano.sh/vgpu-nouse-gpuuuid", "Not these cards.", NAMES, "deny"),
        annotation.option("volcano.sh/vgpu-mode", "Sharing backend.", _MODE, "backend"),
        annotation.option(
            "volcano.sh/vgpu-podgroup-policy",
            "spread: place no two pods of a group on one card.",
            instead="gpushare.io/placement=spread: the emptiest card of the node",
        ),
    ),
    rules=(not_both("memory-percent", "memory", "keep one of the two"),),
    assumed=(
        ImpliedValue(
            "memory-percent", "100", ("memory",), "Volcano's default if no memory is requested"
        ),
    ),
    translated_by="Volcano's vGPU device plugin, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
    domains=("volcano.sh/vgpu-",),
    notes=("Memory and compute are of each card.",),
)

# Huawei Cloud CCE: virtual GPUs of its Volcano, over xGPU.
# Source: CCE's manual, "Using GPU Virtualization", "Equal Distribution Scheduling on Virtual
# GPUs", "Kubernetes' Default GPU Scheduling in GPU Virtualization"; hce_xgpu_0003.
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
