# SPDX-License-Identifier: Apache-2.0
"""KAI-Scheduler and Run:ai: fractions of a card by annotations of the pod.

The newer annotations name their container. The older ones are for the pod's first container, or
for the one that gpu-fraction-container-name names.

Source: KAI-Scheduler (pkg/common/constants, pkg/common/resources), its gpu-fractioning
(annotations), Run:ai's manual on GPU fractions.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row
from gpushare.quota.dialects.rules import LeastBytes, NotAbove, NotBoth
from gpushare.quota.dialects.units import (
    CARDS,
    MIBS,
    PART,
    QUANTITY,
    QUANTITY_OR_PART,
    TEXT,
    VISIBLE,
    choice,
)

_LEAST: Final = LeastBytes(10**6)  # less is no whole MB to the driver's limits

KAI: Final = Dialect(
    "kai",
    "KAI and Run:ai",
    rows=(
        Row(
            "nvidia.com/container.{container}.gpu-memory.request",
            "annotation",
            "asks",
            "Memory of each card that the container is sure of.",
            QUANTITY,
            "memory",
            rules=(_LEAST,),
        ),
        Row(
            "nvidia.com/container.{container}.gpu-memory.limit",
            "annotation",
            "asks",
            "Memory of each card that it never passes.",
            QUANTITY,
            "memory-limit",
            rules=(_LEAST,),
        ),
        Row(
            "nvidia.com/container.{container}.gpu-compute.mode",
            "annotation",
            "says",
            "How compute is shared: time-slicing in turns, sm-sharing through MPS; here in turns.",
            choice(
                "time-slicing or sm-sharing",
                {"time-slicing": "best-effort", "sm-sharing": "best-effort"},
            ),
            "policy",
        ),
        Row(
            "nvidia.com/container.{container}.gpus.devices",
            "annotation",
            "says",
            "The cards that the scheduler chose.",
            VISIBLE,
            "devices",
        ),
        Row(
            "gpu-fraction",
            "annotation",
            "asks",
            "The part of a card's memory, below 1.",
            PART,
            "memory-percent",
        ),
        Row("gpu-memory", "annotation", "asks", "Memory of each card.", MIBS, "memory"),
        Row(
            "gpu-memory.limit",
            "annotation",
            "says",
            "Memory of each card that it never passes.",
            QUANTITY,
            "memory-limit",
        ),
        Row(
            "gpu-fraction.limit",
            "annotation",
            "says",
            "Memory that it never passes, as a part of a card.",
            TEXT,
            instead="nothing: gpushare.io/memory-limit is a size",
        ),
        Row("gpu-fraction-num-devices", "annotation", "says", "Cards.", CARDS, "count"),
        Row(
            "gpu-fraction-container-name",
            "annotation",
            "says",
            "The container that the others are for; without it the first.",
            TEXT,
            names_container=True,
            instead="gpushare.io/container.NAME.memory",
        ),
        Row(
            "NVIDIA_VISIBLE_DEVICES",
            "env",
            "says",
            "The cards that KAI's binder chose.",
            VISIBLE,
            "devices",
        ),
        Row(
            "NVIDIA_GPU_MEMORY_REQUEST",
            "env",
            "asks",
            "What its binder hands on of gpu-memory.request.",
            MIBS,
            "memory",
        ),
        Row(
            "NVIDIA_GPU_MEMORY_LIMIT",
            "env",
            "asks",
            "What its binder hands on of gpu-memory.limit.",
            MIBS,
            "memory-limit",
        ),
        Row(
            "RUNAI_GPU_MEMORY_LIMIT",
            "env",
            "says",
            "Memory that it never passes, as a quantity; as a part of a card it says nothing here.",
            QUANTITY_OR_PART,
            "memory-limit",
        ),
    ),
    rules=(
        NotAbove("memory", "memory-limit"),
        NotBoth("memory", "memory-percent", "keep gpu-memory or gpu-fraction"),
    ),
    assumed=(
        Assumed(
            "memory",
            like="memory-limit",
            without=("memory-percent",),
            why="a limit alone is the request too",
        ),
    ),
    translated_by="the annotations themselves reach a runtime that is let see them",
    domains=("nvidia.com/container.", "gpu-fraction", "gpu-memory"),
    notes=(
        "Of the older words gpu-memory is whole MiB; gpu-memory.request is a quantity, 4G decimal.",
        "A gpu-fraction is a part of the memory; compute is in turns.",
    ),
)
