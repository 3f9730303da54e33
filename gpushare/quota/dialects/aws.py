# SPDX-License-Identifier: Apache-2.0
"""AWS ECS: GPUs of a task definition. Its agent writes NVIDIA's variables into the container.

Source: Amazon ECS API, ResourceRequirement and NvidiaMpsAllocation.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import CARDS_OR_ALL, MIBS, PERCENT_CAP
from gpushare.quota.dialects.vendor_key import Dialect, task

AWS: Final = Dialect(
    "aws",
    "AWS ECS",
    rows=(
        task.request("resourceRequirements.GPU", "Whole cards, or ALL.", CARDS_OR_ALL, "count"),
        task.request("nvidiaMps.memory", "Memory of the card, in MiB.", MIBS, "memory"),
        task.option(
            "nvidiaMps.maxComputePercent",
            "Compute that it never passes; 100 is no limit.",
            PERCENT_CAP,
            "cores",
        ),
    ),
    translated_by="the ECS agent, to NVIDIA_VISIBLE_DEVICES, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and "
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    notes=("maxComputePercent is a limit and reserves nothing.",),
)
