# SPDX-License-Identifier: Apache-2.0
"""Schedulers and libraries with few keys: Koordinator, KubeShare, nvshare, OrionX."""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    ACCESS,
    BYTES,
    CARDS,
    MIBS,
    PART_UP_TO_ONE,
    PERCENT_CAP,
    PERCENT_OR_CARDS,
    QUANTITY,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    KeyLocation,
    VendorKey,
    env,
    label,
    limit,
    needs,
    not_both,
)

# Koordinator's DeviceShare: totals over koordinator.sh/gpu.shared cards.
# Source: koordinator (docs/proposals/scheduling/20230803-enhance-gpu-share-api.md,
# apis/extension).
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

# KubeShare: annotations of a SharePod (1.x), labels of a pod (2.0).
# Source: NTHU-LSALAB/KubeShare (README.md, doc/).
_FORMS: Final[tuple[tuple[str, KeyLocation], ...]] = (
    ("kubeshare", "annotation"),
    ("sharedgpu", "label"),
)

KUBESHARE: Final = Dialect(
    "kubeshare",
    "KubeShare",
    rows=tuple(
        row
        for prefix, where in _FORMS
        for row in (
            VendorKey(
                f"{prefix}/gpu_request",
                "Guaranteed compute, 0 to 1.",
                PART_UP_TO_ONE,
                "cores",
                where=where,
                role="request",
            ),
            VendorKey(
                f"{prefix}/gpu_limit",
                "Compute limit; if it exceeds gpu_request, gpu_request applies.",
                PART_UP_TO_ONE,
                "cores",
                where=where,
                role="option",
            ),
            VendorKey(
                f"{prefix}/gpu_mem",
                "Memory in bytes.",
                BYTES,
                "memory",
                where=where,
                role="request",
            ),
            VendorKey(
                f"{prefix}/GPUID",
                "The virtual GPU that the scheduler chose.",
                where=where,
                role="record",
            ),
        )
    ),
    rules=(
        needs("cores", "memory", "add gpu_mem"),
        needs("memory", "cores", "add gpu_request and gpu_limit"),
    ),
    translated_by="the annotations themselves, if the engine passes them; labels are never passed",
    domains=("kubeshare/gpu", "sharedgpu/gpu"),
    notes=(
        "KubeShare counts gpu_mem in bytes.",
        "For bursts up to gpu_limit, use gpushare.io/policy burst-share.",
    ),
)

# nvshare: turns on a card, each with all of its memory, paged to the host.
# Source: grgalex/nvshare (README.md).
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
            instead="gpushare.io/oversubscribe=host, where the node allows it",
        ),
        env.record("NVSHARE_DEBUG", "1: verbose logging of its library.", instead="GPUSHARE_LOG"),
    ),
    domains=("nvshare.com/", "NVSHARE_"),
    notes=("nvshare does not limit memory: add gpushare.io/memory, or set defaults.memory.",),
)

# VirtAI OrionX: virtual GPUs by environment. The amounts are of each vGPU.
# Source: virtaitech/orion (doc/); OrionX's pods as others show them.
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
