# SPDX-License-Identifier: Apache-2.0
"""Koordinator's DeviceShare: totals over koordinator.sh/gpu.shared cards.

Source: koordinator (docs/proposals/scheduling/20230803-enhance-gpu-share-api.md, apis/extension).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import CARDS, PERCENT_OR_CARDS, QUANTITY
from gpushare.quota.dialects.vendor_key import Dialect, label, limit, needs, not_both

KOORDINATOR: Final = Dialect(
    "koordinator",
    "Koordinator",
    rows=(
        limit.option(
            "koordinator.sh/gpu.shared", "Number of cards to divide the totals by.", CARDS, "count"
        ),
        limit.request(
            "koordinator.sh/gpu-core",
            "Compute of all cards together, 100 per card.",
            PERCENT_OR_CARDS,
            "cores",
            summed=True,
        ),
        limit.request(
            "koordinator.sh/gpu-memory",
            "Memory of all cards together.",
            QUANTITY,
            "memory",
            summed=True,
        ),
        limit.request(
            "koordinator.sh/gpu-memory-ratio",
            "Memory of all cards together, in percent, 100 per card.",
            PERCENT_OR_CARDS,
            "memory-percent",
            summed=True,
        ),
        limit.request(
            "koordinator.sh/gpu",
            "Compute and memory together: percent of a card, or N x 100.",
            PERCENT_OR_CARDS,
            "cores",
            summed=True,
        ),
        limit.request(
            "koordinator.sh/gpu",
            "The memory part of koordinator.sh/gpu.",
            PERCENT_OR_CARDS,
            "memory-percent",
            summed=True,
        ),
        label.option(
            "koordinator.sh/gpu-isolation-provider",
            "Isolation provider: HAMi-core.",
            instead="gpushare enforces shares; gpushare.io/backend selects the backend",
        ),
    ),
    rules=(
        needs("cores", "memory", "add koordinator.sh/gpu-memory", strict=False),
        not_both("memory", "memory-percent", "keep gpu-memory or gpu-memory-ratio"),
    ),
    equal_requests=True,
    domains=("koordinator.sh/gpu",),
    notes=("Without a suffix koordinator.sh/gpu-memory is bytes.",),
)
