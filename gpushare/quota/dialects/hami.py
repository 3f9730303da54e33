# SPDX-License-Identifier: Apache-2.0
"""HAMi: what users write, and what its device plugin hands to the container.

Source: HAMi 2.10 (pkg/device/nvidia, pkg/util/types.go), HAMi-core (src/include, multiprocess).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row
from gpushare.quota.dialects.units import (
    BINARY_SIZE,
    CARDS,
    MIBS_OR_ALL,
    NAMES,
    PERCENT,
    PERCENT_OR_ANY,
    choice,
)

_POLICY: Final = choice(
    "force, default or disable",
    {"force": "fixed-share", "default": "burst-share", "disable": "best-effort"},
)
# 0 is what everybody has there: it is not to come before who says nothing here.
_PRIORITY: Final = choice("0 high or 1 low", {"0": None, "1": "6"})

HAMI: Final = Dialect(
    "hami",
    "HAMi",
    rows=(
        Row("nvidia.com/gpu", "limit", "says", "Physical cards, each shared.", CARDS, "count"),
        Row("nvidia.com/gpumem", "limit", "asks", "Memory of each card.", MIBS_OR_ALL, "memory"),
        Row(
            "nvidia.com/gpumem-percentage",
            "limit",
            "asks",
            "The same, of what a card has.",
            PERCENT,
            "memory-percent",
        ),
        Row(
            "nvidia.com/gpucores",
            "limit",
            "asks",
            "Compute of each card; 100 is a whole one, 0 any.",
            PERCENT_OR_ANY,
            "cores",
        ),
        Row("nvidia.com/priority", "limit", "says", "0 high, 1 low.", _PRIORITY, "priority"),
        Row("nvidia.com/use-gputype", "annotation", "says", "Only these models.", NAMES, "allow"),
        Row("nvidia.com/nouse-gputype", "annotation", "says", "Not these models.", NAMES, "deny"),
        Row(
            "CUDA_DEVICE_MEMORY_LIMIT_{card}",
            "env",
            "asks",
            "Memory of one card.",
            BINARY_SIZE,
            "memory",
        ),
        Row("CUDA_DEVICE_MEMORY_LIMIT", "env", "asks", "Of each card.", BINARY_SIZE, "memory"),
        Row(
            "CUDA_DEVICE_SM_LIMIT",
            "env",
            "asks",
            "Compute of each card.",
            PERCENT_OR_ANY,
            "cores",
        ),
        Row(
            "CUDA_DEVICE_SM_LIMIT_{card}",
            "env",
            "asks",
            "Compute of one card.",
            PERCENT_OR_ANY,
            "cores",
        ),
        Row(
            "GPU_CORE_UTILIZATION_POLICY",
            "env",
            "says",
            "Whether compute is held.",
            _POLICY,
            "policy",
        ),
        Row("CUDA_TASK_PRIORITY", "env", "says", "0 high, 1 low.", _PRIORITY, "priority"),
    ),
    assumed=(
        Assumed(
            "memory-percent", "100", ("memory",), "HAMi's defaultMemory where no memory is asked"
        ),
    ),
    translated_by="HAMi's device plugin writes them to CUDA_DEVICE_MEMORY_LIMIT_<card>",
    domains=("nvidia.com/gpu",),
)
