# SPDX-License-Identifier: Apache-2.0
"""HAMi's driver of dynamic resource allocation: capacity of a card that a claim consumes.

Source: Project-HAMi/k8s-dra-driver (its DeviceClass and ResourceSlices).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.units import CARDS_OR_ALL, PERCENT_OR_ANY, QUANTITY, TEXT

_CLASS: Final = "hami-core-gpu.project-hami.io"

HAMI_DRA: Final = Dialect(
    "hami-dra",
    "HAMi DRA",
    rows=(
        Row(_CLASS, "claim", "asks", "Cards of a claim.", CARDS_OR_ALL, "count"),
        Row(
            "capacity.requests.cores",
            "claim",
            "says",
            "Compute of each card, 0 to 100; 0 is any.",
            PERCENT_OR_ANY,
            "cores",
        ),
        Row(
            "capacity.requests.memory",
            "claim",
            "says",
            "Memory of each card, in whole MiB.",
            QUANTITY,
            "memory",
        ),
        Row(
            "allowMultipleAllocations",
            "claim",
            "kept",
            "That several claims may have parts of a card.",
            TEXT,
        ),
    ),
    translated_by="HAMi's DRA driver, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
)
