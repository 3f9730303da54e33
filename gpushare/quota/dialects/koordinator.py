# SPDX-License-Identifier: Apache-2.0
"""Koordinator's DeviceShare: totals over koordinator.sh/gpu.shared cards.

Source: koordinator (docs/proposals/scheduling/20230803-enhance-gpu-share-api.md, apis/extension).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.rules import Needs, NotBoth
from gpushare.quota.dialects.units import CARDS, PERCENT_OR_CARDS, QUANTITY, TEXT

KOORDINATOR: Final = Dialect(
    "koordinator",
    "Koordinator",
    rows=(
        Row("koordinator.sh/gpu.shared", "limit", "says", "Cards to divide by.", CARDS, "count"),
        Row(
            "koordinator.sh/gpu-core",
            "limit",
            "asks",
            "Compute of all cards together, 100 each.",
            PERCENT_OR_CARDS,
            "cores",
            total=True,
        ),
        Row(
            "koordinator.sh/gpu-memory",
            "limit",
            "asks",
            "Memory of all cards together.",
            QUANTITY,
            "memory",
            total=True,
        ),
        Row(
            "koordinator.sh/gpu-memory-ratio",
            "limit",
            "asks",
            "The same in percent of a card, 100 each.",
            PERCENT_OR_CARDS,
            "memory-percent",
            total=True,
        ),
        Row(
            "koordinator.sh/gpu",
            "limit",
            "asks",
            "Compute and memory in one: percent of a card, or N x 100.",
            PERCENT_OR_CARDS,
            "cores",
            total=True,
        ),
        Row(
            "koordinator.sh/gpu",
            "limit",
            "asks",
            "The memory of it.",
            PERCENT_OR_CARDS,
            "memory-percent",
            total=True,
        ),
        Row(
            "koordinator.sh/gpu-isolation-provider",
            "label",
            "says",
            "What holds the shares: HAMi-core.",
            TEXT,
            instead="gpushare holds them; gpushare.io/backend chooses how",
        ),
    ),
    rules=(
        Needs("cores", "memory", "add koordinator.sh/gpu-memory", strict=False),
        NotBoth("memory", "memory-percent", "keep gpu-memory or gpu-memory-ratio"),
    ),
    equal_requests=True,
    domains=("koordinator.sh/gpu",),
    notes=("Without a suffix koordinator.sh/gpu-memory is bytes.",),
)
