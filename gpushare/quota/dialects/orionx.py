# SPDX-License-Identifier: Apache-2.0
"""VirtAI OrionX: virtual GPUs by environment. The amounts are of each vGPU.

Source: virtaitech/orion (doc/); OrionX's pods as others show them.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import CARDS, MIBS, PERCENT_CAP
from gpushare.quota.dialects.vendor_key import Dialect, env, limit

ORIONX: Final = Dialect(
    "orionx",
    "OrionX",
    rows=(
        limit.request("virtaitech.com/gpu", "Virtual GPUs.", CARDS, "count"),
        env.request(
            "ORION_VGPU", "Virtual GPUs; gpushare places each on a separate card.", CARDS, "count"
        ),
        env.request("ORION_GMEM", "Memory of each vGPU.", MIBS, "memory"),
        env.request(
            "ORION_RATIO", "Compute of each vGPU in percent; 100 is no limit.", PERCENT_CAP, "cores"
        ),
        env.option(
            "ORION_RESERVED",
            "1: allocate when the pod starts, not at the first call.",
            instead="always the case: gpushare reserves a share when the container is created",
        ),
        env.option(
            "ORION_CROSS_NODE",
            "1: use cards of other nodes too.",
            instead="nothing: gpushare allocates cards of this node only",
        ),
        env.record("ORION_GROUP_ID", "Owner of the vGPUs."),
    ),
    domains=("ORION_", "virtaitech.com/"),
    notes=(
        "ORION_GMEM counts MB of 2^20 bytes, as nvidia-smi shows them.",
        "OrionX may place two vGPUs on one card; gpushare places each on a separate card.",
    ),
)
