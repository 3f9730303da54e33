# SPDX-License-Identifier: Apache-2.0
"""nvshare: turns on a card, each with all of its memory, paged to the host.

Source: grgalex/nvshare (README.md).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.units import ACCESS, TEXT

NVSHARE: Final = Dialect(
    "nvshare",
    "nvshare",
    rows=(
        Row(
            "nvshare.com/gpu",
            "limit",
            "asks",
            "Turns on a card; no part of its memory.",
            ACCESS,
            "policy",
        ),
        Row(
            "NVSHARE_ENABLE_SINGLE_OVERSUB",
            "env",
            "says",
            "1: one process may take more than the card has.",
            TEXT,
            instead="gpushare.io/oversubscribe, which this version refuses",
        ),
        Row(
            "NVSHARE_DEBUG",
            "env",
            "kept",
            "1: its library says more.",
            TEXT,
            instead="GPUSHARE_LOG",
        ),
    ),
    domains=("nvshare.com/", "NVSHARE_"),
    notes=(
        "No memory is bounded by nvshare: add gpushare.io/memory, or defaults.memory of the node.",
    ),
)
