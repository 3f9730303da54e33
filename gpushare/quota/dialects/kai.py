# SPDX-License-Identifier: Apache-2.0
"""KAI-Scheduler and Run:ai: fractions of a card by annotations of the pod.

The newer annotations name their container. The older ones are for the pod's first container, or
for the one that gpu-fraction-container-name names.

Source: KAI-Scheduler (pkg/common/constants, pkg/common/resources), its gpu-fractioning
(annotations), Run:ai's manual on GPU fractions.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    CARDS,
    MIBS,
    PART,
    QUANTITY,
    QUANTITY_OR_PART,
    VISIBLE,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    annotation,
    env,
    least_bytes,
    not_above,
    not_both,
)

_LEAST: Final = least_bytes(10**6)  # less is no whole MB to the driver's limits

KAI: Final = Dialect(
    "kai",
    "KAI and Run:ai",
    rows=(
        annotation.request(
            "nvidia.com/container.{container}.gpu-memory.request",
            "Guaranteed memory of each card.",
            QUANTITY,
            "memory",
            rules=(_LEAST,),
        ),
        annotation.request(
            "nvidia.com/container.{container}.gpu-memory.limit",
            "Memory limit of each card.",
            QUANTITY,
            "memory-limit",
            rules=(_LEAST,),
        ),
        annotation.option(
            "nvidia.com/container.{container}.gpu-compute.mode",
            "time-slicing, or sm-sharing through MPS; gpushare uses time slices for both.",
            choice(
                "time-slicing or sm-sharing",
                {"time-slicing": "best-effort", "sm-sharing": "best-effort"},
            ),
            "policy",
        ),
        annotation.option(
            "nvidia.com/container.{container}.gpus.devices",
            "The cards that the scheduler chose.",
            VISIBLE,
            "devices",
        ),
        annotation.request(
            "gpu-fraction", "Fraction of a card's memory, below 1.", PART, "memory-percent"
        ),
        annotation.request("gpu-memory", "Memory of each card.", MIBS, "memory"),
        annotation.option(
            "gpu-memory.limit",
            "Memory limit of each card.",
            QUANTITY,
            "memory-limit",
        ),
        annotation.option(
            "gpu-fraction.limit",
            "Memory limit, as a fraction of a card.",
            instead="nothing: gpushare.io/memory-limit is a size",
        ),
        annotation.option("gpu-fraction-num-devices", "Cards.", CARDS, "count"),
        annotation.option(
            "gpu-fraction-container-name",
            "The container that the other annotations apply to. Default: the first.",
            names_container=True,
            instead="gpushare.io/container.NAME.memory",
        ),
        env.option(
            "NVIDIA_VISIBLE_DEVICES", "The cards that KAI's binder chose.", VISIBLE, "devices"
        ),
        env.request(
            "NVIDIA_GPU_MEMORY_REQUEST",
            "gpu-memory.request, as KAI's binder passes it on.",
            MIBS,
            "memory",
        ),
        env.request(
            "NVIDIA_GPU_MEMORY_LIMIT",
            "gpu-memory.limit, as KAI's binder passes it on.",
            MIBS,
            "memory-limit",
        ),
        env.option(
            "RUNAI_GPU_MEMORY_LIMIT",
            "Memory limit, as a quantity; ignored if it is a fraction of a card.",
            QUANTITY_OR_PART,
            "memory-limit",
        ),
    ),
    rules=(
        not_above("memory", "memory-limit"),
        not_both("memory", "memory-percent", "keep gpu-memory or gpu-fraction"),
    ),
    assumed=(
        ImpliedValue(
            "memory",
            like="memory-limit",
            without=("memory-percent",),
            why="a limit without a request is also the request",
        ),
    ),
    translated_by="the annotations themselves, if the engine passes them to the runtime",
    domains=("nvidia.com/container.", "gpu-fraction", "gpu-memory"),
    notes=(
        "The older gpu-memory is in MiB; gpu-memory.request is a quantity (4G is decimal).",
        "A gpu-fraction is a fraction of the memory; compute is shared by time.",
    ),
)
