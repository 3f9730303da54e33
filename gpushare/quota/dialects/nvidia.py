# SPDX-License-Identifier: Apache-2.0
"""NVIDIA: the container toolkit, MPS, the device plugin's sharing, the DRA driver.

NVIDIA_VISIBLE_DEVICES asks for nothing, since images set it themselves: beside a request in this
dialect it says which cards.

Source: nvidia-container-toolkit 1.20 (apply-cuda-memory-limits, internal/config/image),
k8s-device-plugin 0.20 (api/config/v1), dra-driver-nvidia-gpu (api/nvidia.com/resource/v1beta1), the
MPS manual's appendix on environment variables (release 615).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row
from gpushare.quota.dialects.rules import NotAbove
from gpushare.quota.dialects.units import (
    ACCESS,
    CARDS_OR_ALL,
    MIBS,
    PERCENT,
    PERCENT_CAP,
    PINNED_BY_CARD,
    QUANTITY,
    TEXT,
    VISIBLE,
    WHOLE_CARDS,
    choice,
)

_TOOLKIT: Final = (
    Row(
        "NVIDIA_VISIBLE_DEVICES",
        "env",
        "says",
        "Which cards: indices or UUIDs; all, none and void say none in particular.",
        VISIBLE,
        "devices",
    ),
    Row(
        "NVIDIA_DRIVER_CAPABILITIES",
        "env",
        "says",
        "Which parts of the driver.",
        TEXT,
        instead="read as it is: it selects what is mounted, of a share compute and utility",
    ),
    Row(
        "NVIDIA_REQUIRE_{any}",
        "env",
        "says",
        "What driver, CUDA and card the image needs.",
        TEXT,
        instead="gpushare compat reads it",
    ),
    Row(
        "NVIDIA_DISABLE_REQUIRE",
        "env",
        "says",
        "Switches NVIDIA_REQUIRE_ off: true or 1.",
        TEXT,
        instead="gpushare compat reads it",
    ),
    *(
        Row(name, "env", "says", meaning, TEXT, instead="passed on; nothing is mounted for it")
        for name, meaning in (
            ("NVIDIA_MIG_CONFIG_DEVICES", "Cards whose MIG parts it may make."),
            ("NVIDIA_MIG_MONITOR_DEVICES", "Cards whose MIG parts it may watch."),
            ("NVIDIA_IMEX_CHANNELS", "Memory channels between nodes."),
            ("NVIDIA_GDS", "Storage straight to the card's memory: enabled."),
            ("NVIDIA_MOFED", "The network's own driver: enabled."),
            ("NVIDIA_NVSWITCH", "The switches between cards: enabled."),
            ("NVIDIA_GDRCOPY", "The card's memory mapped for the CPU: enabled."),
        )
    ),
    Row(
        "NVIDIA_GPU_MEMORY_REQUEST",
        "env",
        "asks",
        "Memory of each card that it is sure of.",
        MIBS,
        "memory",
    ),
    Row(
        "NVIDIA_GPU_MEMORY_LIMIT",
        "env",
        "asks",
        "Memory of each card that it never passes.",
        MIBS,
        "memory-limit",
    ),
)

_MPS: Final = (
    Row(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "env",
        "asks",
        "Memory of each card that it never passes: 0=1G,1=512M.",
        PINNED_BY_CARD,
        "memory",
    ),
    Row(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "env",
        "says",
        "The part of a card's multiprocessors that it may fill; 100 is no bound.",
        PERCENT_CAP,
        "cores",
    ),
    Row(
        "CUDA_MPS_CLIENT_PRIORITY",
        "env",
        "says",
        "0 normal, 1 below it.",
        choice("0 or 1", {"0": None, "1": "6"}),  # 5 is who asks for none
        "priority",
    ),
    Row(
        "CUDA_MPS_PIPE_DIRECTORY",
        "env",
        "says",
        "Where the MPS daemon listens.",
        TEXT,
        instead="passed on; a share here needs no MPS daemon",
    ),
    Row(
        "CUDA_MPS_LOG_DIRECTORY",
        "env",
        "says",
        "Where the MPS daemon writes.",
        TEXT,
        instead="passed on; a share here needs no MPS daemon",
    ),
    Row(
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
        "env",
        "says",
        "1: each context of a process has its own percentage.",
        TEXT,
        instead="passed on; gpushare shares between containers",
    ),
    Row(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "env",
        "says",
        "Queues between a program and the card.",
        TEXT,
        instead="passed on to the driver",
    ),
)

_PLUGIN: Final = (
    Row("nvidia.com/gpu", "limit", "asks", "Whole cards.", WHOLE_CARDS, "count"),
    Row(
        "nvidia.com/gpu.shared",
        "limit",
        "asks",
        "Turns on a card that others share; no part of its memory.",
        ACCESS,
        "policy",
    ),
    Row(
        "nvidia.com/mps-core",
        "limit",
        "asks",
        "Percent of a card's compute, through MPS.",
        PERCENT,
        "cores",
        source="Alauda's device plugin for MPS",
    ),
    Row(
        "nvidia.com/mig-{any}",
        "limit",
        "asks",
        "Parts of a card that MIG makes.",
        TEXT,
        instead="gpushare.io/devices with the part's UUID (gpushare ls)",
    ),
    Row(
        "nvidia.com/gpu.sharing-strategy",
        "node label",
        "kept",
        "What the plugin does: none, mps or time-slicing.",
        TEXT,
    ),
    Row("nvidia.com/mps.capable", "node label", "kept", "Whether MPS runs there.", TEXT),
    Row(
        "nvidia.com/device-plugin.config",
        "node label",
        "node",
        "Which of the plugin's configurations.",
        TEXT,
        instead="gpushare.yaml of that node",
    ),
    *(
        Row(f"sharing.{way}.{name}", "plugin", "node", meaning, TEXT, instead=instead)
        for way in ("timeSlicing", "mps")
        for name, meaning, instead in (
            ("renameByDefault", "Call what is shared nvidia.com/gpu.shared.", "no need: see cards"),
            (
                "failRequestsGreaterThanOne",
                "Refuse who asks for several, which are no larger share.",
                "ceilings.count of gpushare.yaml",
            ),
            ("resources.name", "What is shared.", "cards of gpushare.yaml"),
            ("resources.rename", "What it is called when shared.", "no need: see cards"),
            (
                "resources.replicas",
                "How many share a card; under MPS each has an equal part.",
                "max_shares and defaults.memory of gpushare.yaml",
            ),
        )
    ),
)

_CLAIM: Final = (
    Row("gpu.nvidia.com", "claim", "asks", "Whole cards of a claim.", CARDS_OR_ALL, "count"),
    Row(
        "sharing.strategy",
        "claim",
        "says",
        "TimeSlicing, or MPS.",
        TEXT,
        instead="gpushare.io/policy: best-effort are turns",
    ),
    Row(
        "sharing.timeSlicingConfig.interval",
        "claim",
        "says",
        "Default, Short, Medium or Long turns.",
        TEXT,
        instead="nothing: the scheduler chooses how long a turn is",
    ),
    Row(
        "sharing.mpsConfig.defaultActiveThreadPercentage",
        "claim",
        "says",
        "The part of a card's multiprocessors for each that shares it.",
        PERCENT_CAP,
        "cores",
    ),
    Row(
        "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit",
        "claim",
        "asks",
        "Memory of each card for each that shares it.",
        QUANTITY,
        "memory",
    ),
    Row(
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.{any}",
        "claim",
        "says",
        "The same for one card, by its index or UUID.",
        QUANTITY,
        instead="gpushare.io/memory, the same of each card",
    ),
    Row(
        "extendedResourceName",
        "claim",
        "kept",
        "The limit by which pods may ask for the class.",
        TEXT,
    ),
)

NVIDIA: Final = Dialect(
    "nvidia",
    "NVIDIA",
    rows=(*_TOOLKIT, *_MPS, *_PLUGIN, *_CLAIM),
    rules=(NotAbove("memory", "memory-limit"),),
    assumed=(
        Assumed(
            "memory",
            like="memory-limit",
            without=("memory-percent",),
            why="a limit alone is the request too",
        ),
    ),
    translated_by="NVIDIA's device plugin, to NVIDIA_VISIBLE_DEVICES or a CDI device: whole cards",
    domains=("NVIDIA_GPU_MEMORY_",),
    notes=(
        "Images set NVIDIA_VISIBLE_DEVICES themselves: alone it asks for no GPU.",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE alone asks for nothing: it bounds who has a card.",
        "Under time slicing nvidia.com/gpu is a turn on a card and no part of its memory.",
        "1G of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is binary, 1G of a claim decimal.",
    ),
)
