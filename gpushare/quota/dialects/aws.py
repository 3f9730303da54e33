# SPDX-License-Identifier: Apache-2.0
"""AWS ECS: GPUs of a task definition. Its agent writes NVIDIA's variables into the container.

Source: Amazon ECS API, ResourceRequirement and NvidiaMpsAllocation.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.units import CARDS_OR_ALL, MIBS, PERCENT_CAP

AWS: Final = Dialect(
    "aws",
    "AWS ECS",
    rows=(
        Row(
            "resourceRequirements.GPU",
            "task",
            "asks",
            "Whole cards, or ALL.",
            CARDS_OR_ALL,
            "count",
        ),
        Row(
            "nvidiaMps.memory",
            "task",
            "asks",
            "Memory of the card, in MiB.",
            MIBS,
            "memory",
        ),
        Row(
            "nvidiaMps.maxComputePercent",
            "task",
            "says",
            "Compute that it never passes; 100 is no bound.",
            PERCENT_CAP,
            "cores",
        ),
    ),
    translated_by="the ECS agent, to NVIDIA_VISIBLE_DEVICES, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and "
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    notes=("A maxComputePercent is a limit and reserves nothing.",),
)
