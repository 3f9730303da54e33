# SPDX-License-Identifier: Apache-2.0
"""nvshare: turns on a card, each with all of its memory, paged to the host.

Source: grgalex/nvshare (README.md).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import ACCESS
from gpushare.quota.dialects.vendor_key import Dialect, env, limit

NVSHARE: Final = Dialect(
    "nvshare",
    "nvshare",
    rows=(
        limit.request(
            "nvshare.com/gpu",
            "Time slices on a card, without a part of its memory.",
            ACCESS,
            "policy",
        ),
        env.option(
            "NVSHARE_ENABLE_SINGLE_OVERSUB",
            "1: one process may allocate more memory than the card has.",
            instead="gpushare.io/oversubscribe, which this version refuses",
        ),
        env.record("NVSHARE_DEBUG", "1: verbose logging of its library.", instead="GPUSHARE_LOG"),
    ),
    domains=("nvshare.com/", "NVSHARE_"),
    notes=("nvshare does not limit memory: add gpushare.io/memory, or set defaults.memory.",),
)
