# SPDX-License-Identifier: Apache-2.0
"""Volcano's vGPU: HAMi's device plugin behind Volcano's scheduler, under names of its own.

Source: volcano-sh/volcano 2026-08 (pkg/scheduler/api/devices/nvidia/vgpu), its device plugin.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row
from gpushare.quota.dialects.rules import NotBoth
from gpushare.quota.dialects.units import CARDS, MIBS_OR_ALL, NAMES, PERCENT_OR_ANY, TEXT, choice

_MODE: Final = choice(
    "hami-core, mig or mps", {"hami-core": "interposer", "mig": "mig", "mps": "mps"}
)

VOLCANO: Final = Dialect(
    "volcano",
    "Volcano vGPU",
    rows=(
        Row(
            "volcano.sh/vgpu-number",
            "limit",
            "asks",
            "Physical cards, each shared.",
            CARDS,
            "count",
        ),
        Row(
            "volcano.sh/vgpu-memory",
            "limit",
            "asks",
            "Memory of each card, times the plugin's memory factor; 0 is all of it.",
            MIBS_OR_ALL,
            "memory",
        ),
        Row(
            "volcano.sh/vgpu-memory-percentage",
            "limit",
            "asks",
            "Memory of each card, of what it has.",
            PERCENT_OR_ANY,
            "memory-percent",
        ),
        Row(
            "volcano.sh/vgpu-cores",
            "limit",
            "asks",
            "Compute of each card; 100 is a whole one, 0 any.",
            PERCENT_OR_ANY,
            "cores",
        ),
        Row(
            "volcano.sh/vgpu-use-gpuuuid",
            "annotation",
            "says",
            "Only these cards.",
            NAMES,
            "allow",
        ),
        Row(
            "volcano.sh/vgpu-nouse-gpuuuid",
            "annotation",
            "says",
            "Not these cards.",
            NAMES,
            "deny",
        ),
        Row("volcano.sh/vgpu-mode", "annotation", "says", "What divides a card.", _MODE, "backend"),
        Row(
            "volcano.sh/vgpu-podgroup-policy",
            "annotation",
            "says",
            "spread: no two pods of a group on one card.",
            TEXT,
            instead="gpushare.io/placement=spread: the emptiest card of the node",
        ),
    ),
    rules=(NotBoth("memory-percent", "memory", "keep one of the two"),),
    assumed=(
        Assumed("memory-percent", "100", ("memory",), "Volcano's default where no memory is asked"),
    ),
    translated_by="Volcano's vGPU device plugin, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
    domains=("volcano.sh/vgpu-",),
    notes=("Memory and compute are of each card.",),
)
