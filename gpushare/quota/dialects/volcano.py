# SPDX-License-Identifier: Apache-2.0
"""Volcano's vGPU: HAMi's device plugin behind Volcano's scheduler, under names of its own.

Source: volcano-sh/volcano 2026-08 (pkg/scheduler/api/devices/nvidia/vgpu), its device plugin.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import CARDS, MIBS_OR_ALL, NAMES, PERCENT_OR_ANY, choice
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    annotation,
    limit,
    not_both,
)

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
