# SPDX-License-Identifier: Apache-2.0
"""VirtAI OrionX: virtual GPUs by environment. The amounts are of each vGPU.

Source: virtaitech/orion (doc/); OrionX's pods as others show them.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.units import CARDS, MIBS, PERCENT_CAP, TEXT

ORIONX: Final = Dialect(
    "orionx",
    "OrionX",
    rows=(
        Row("virtaitech.com/gpu", "limit", "asks", "Virtual GPUs.", CARDS, "count"),
        Row(
            "ORION_VGPU",
            "env",
            "asks",
            "Virtual GPUs, each of a card of its own here.",
            CARDS,
            "count",
        ),
        Row("ORION_GMEM", "env", "asks", "Memory of each vGPU.", MIBS, "memory"),
        Row(
            "ORION_RATIO",
            "env",
            "asks",
            "Compute of each vGPU in percent; 100 is no bound.",
            PERCENT_CAP,
            "cores",
        ),
        Row(
            "ORION_RESERVED",
            "env",
            "says",
            "1: taken when the pod starts, not with the first call.",
            TEXT,
            instead="always so: a share is reserved when the container is made",
        ),
        Row(
            "ORION_CROSS_NODE",
            "env",
            "says",
            "1: cards of other nodes too.",
            TEXT,
            instead="nothing: gpushare gives cards of this node",
        ),
        Row("ORION_GROUP_ID", "env", "kept", "Whose vGPUs they are.", TEXT),
    ),
    domains=("ORION_", "virtaitech.com/"),
    notes=(
        "ORION_GMEM counts MB of 2^20 bytes, as nvidia-smi shows them.",
        "Of OrionX two vGPUs may be on one card; here each is on its own.",
    ),
)
