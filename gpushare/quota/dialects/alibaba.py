# SPDX-License-Identifier: Apache-2.0
"""Alibaba Cloud: ACK's shared GPUs and cGPU, and PAI's eGPU.

ACK's scheduler and device plugin turn limits and labels into cGPU's variables; who runs cGPU by
docker writes those himself. eGPU has variables of its own.

Source: alibabacloud.com 191140, 171786, use-cgpu-to-allocate-computing-power; the README of cGPU;
AliyunContainerService/gpushare-device-plugin; kubeflow/arena; help.aliyun.com PAI eGPU. What is
said of ALIYUN_COM_GPU_SCHD_WEIGHT, ALIYUN_COM_GPU_HIGH_PRIO and /proc/cgpu_km is the Elastic GPU
Service's reference, as others quote it.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row, Where
from gpushare.quota.dialects.rules import Needs, OneCard, Step
from gpushare.quota.dialects.units import (
    BYTES,
    CARDS,
    GIBS,
    NAMES,
    PARTS,
    PERCENT,
    SWITCH,
    TEXT,
    VISIBLE,
    WEIGHT,
    choice,
)

_BOTH: Final[tuple[Where, ...]] = ("annotation", "env")
_CLASS: Final = choice(
    "1 or 0", {"1": "online", "true": "online", "0": "offline", "false": "offline"}
)

_LIMITS: Final = (
    Row(
        "aliyun.com/gpu-mem",
        "limit",
        "asks",
        "Memory of all cards together; aliyun.com/gpu-count divides it.",
        GIBS,
        "memory",
        total=True,
    ),
    Row(
        "aliyun.com/gpu-core.percentage",
        "limit",
        "asks",
        "Compute of a card, in steps of 5, on nodes of mode core_mem.",
        PERCENT,
        "cores",
        rules=(Step(5),),
    ),
    Row(
        "aliyun.com/gpu",
        "limit",
        "asks",
        "Whole cards, near to each other, on nodes of mode topology.",
        CARDS,
        "count",
    ),
    Row(
        "aliyun.com/gpu-count",
        "label",
        "says",
        "Cards of one node over which aliyun.com/gpu-mem is divided, evenly.",
        CARDS,
        "count",
    ),
)

_ENV: Final = (
    Row(
        "ALIYUN_COM_GPU_MEM_CONTAINER",
        "env",
        "asks",
        "Memory of each card, as a part of ALIYUN_COM_GPU_MEM_DEV.",
        PARTS,
        "memory-percent",
        over="ALIYUN_COM_GPU_MEM_DEV",
    ),
    Row(
        "ALIYUN_COM_GPU_MEM_DEV",
        "env",
        "asks",
        "Memory of a whole card, in the unit of ALIYUN_COM_GPU_MEM_CONTAINER.",
        PARTS,
        beside="ALIYUN_COM_GPU_MEM_CONTAINER",
        instead="the whole of which ALIYUN_COM_GPU_MEM_CONTAINER is a part",
    ),
    Row(
        "ALIYUN_COM_GPU_MEM_UNIT",
        "env",
        "kept",
        "GiB or GB: the unit of both.",
        TEXT,
        instead="nothing: their ratio is the same in every unit",
    ),
    Row(
        "ALIYUN_COM_GPU_VISIBLE_DEVICES",
        "env",
        "asks",
        "The cards that are shared.",
        NAMES,
        "devices",
    ),
    Row(
        "NVIDIA_VISIBLE_DEVICES",
        "env",
        "says",
        "The cards that ACK's scheduler chose.",
        VISIBLE,
        "devices",
    ),
    Row(
        "ALIYUN_COM_GPU_SCHD_WEIGHT",
        "env",
        "says",
        "Its weight among the containers of a card.",
        WEIGHT,
        "weight",
    ),
    Row(
        "ALIYUN_COM_GPU_HIGH_PRIO",
        "env",
        "says",
        "1: while it has work the others of the card wait.",
        _CLASS,
        "class",
    ),
    Row("GPU_UTIL_PER_DEVICE", "env", "asks", "Compute of each card.", PERCENT, "cores"),
    Row(
        "CGPU_DISABLE",
        "env",
        "says",
        "1 or true switches cGPU off.",
        TEXT,
        instead="nothing: a quota beside it holds, and no container switches its own off",
    ),
)

_NODE: Final = (
    Row(
        "ack.node.gpu.schedule",
        "node label",
        "node",
        "What the node's cards are for: default (whole cards), share, cgpu, core_mem, mps or "
        "topology.",
        TEXT,
        instead="cards.NAME.mode: any lets a card be either",
    ),
    Row(
        "ack.node.gpu.placement",
        "node label",
        "node",
        "binpack or spread over the node's cards.",
        TEXT,
        instead="defaults.placement",
    ),
    Row(
        "/proc/cgpu_km/{card}/policy",
        "node file",
        "node",
        "How a card's time is divided: 0 in equal slices of max_inst, 1 equally among who is "
        "there, 2 by weight, 3 in percent, 4 softly, 5 as the driver does.",
        TEXT,
        instead="defaults.policy: fixed-share for 0 and 3, native-burst-share for 2, else "
        "best-effort",
    ),
    Row(
        "/proc/cgpu_km/{card}/max_inst",
        "node file",
        "node",
        "The most containers on a card.",
        TEXT,
        instead="max_shares",
    ),
    Row(
        "/proc/cgpu_km/prio_ratio",
        "node file",
        "node",
        "The most, in percent, that ALIYUN_COM_GPU_HIGH_PRIO may take.",
        TEXT,
        instead="gpushare.io/cores under fixed-share on the container of class online",
    ),
)

_BOOKS: Final = (
    *(
        Row(name, where, "kept", meaning, TEXT, instead="gpushare ps, gpushare inspect")
        for name, meaning in (
            ("ALIYUN_COM_GPU_MEM_IDX", "The card that the scheduler chose."),
            ("ALIYUN_COM_GPU_MEM_POD", "What the pod asks for, all containers together."),
            ("ALIYUN_COM_GPU_MEM_ASSIGNED", "Whether the device plugin has made the container."),
            ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "When the scheduler chose."),
            ("ALIYUN_COM_GPU_MEM_ASSIGN_TIME", "When the device plugin made it."),
        )
        for where in _BOTH
    ),
    Row(
        "topology.kubernetes.io/gpu-group",
        "label",
        "kept",
        "The cards that the scheduler chose, near to each other.",
        TEXT,
        instead="gpushare.io/placement=topology, which is how several cards are chosen anyway",
    ),
)

ALIBABA: Final = Dialect(
    "alibaba",
    "Alibaba ACK and cGPU",
    rows=(*_LIMITS, *_ENV, *_NODE, *_BOOKS),
    rules=(
        Needs("cores", "memory", "ask for memory too: aliyun.com/gpu-mem"),
        Needs(
            "devices",
            "memory",
            "write ALIYUN_COM_GPU_MEM_CONTAINER and ALIYUN_COM_GPU_MEM_DEV",
            unless=("count",),
        ),
        OneCard("cores"),
    ),
    assumed=(
        Assumed(
            "policy",
            "native-burst-share",
            why="which is what weights are for",
            beside="weight",
        ),
    ),
    translated_by="ACK's device plugin, to ALIYUN_COM_GPU_MEM_CONTAINER and _DEV",
    domains=("aliyun.com/gpu", "ALIYUN_COM_GPU_", "ack.node.gpu."),
    notes=(
        "aliyun.com/gpu-mem is of all cards together, ALIYUN_COM_GPU_MEM_CONTAINER of each.",
        "cGPU refuses cudaMallocManaged; gpushare counts it.",
        "A part of ALIYUN_COM_GPU_MEM_DEV becomes whole percent of a card, rounded down.",
    ),
)

EGPU: Final = Dialect(
    "egpu",
    "Alibaba PAI eGPU",
    rows=(
        Row(
            "AMP_VGPU_ENABLE",
            "env",
            "asks",
            "1 switches eGPU on; GPU_MEM_PER_DEVICE beside it says how much.",
            SWITCH,
            beside="GPU_MEM_PER_DEVICE",
        ),
        Row(
            "GPU_MEM_PER_DEVICE",
            "env",
            "asks",
            "Memory of each card.",
            BYTES,
            "memory",
            beside="AMP_VGPU_ENABLE",
        ),
        Row("GPU_UTIL_PER_DEVICE", "env", "asks", "Compute of each card.", PERCENT, "cores"),
        Row("NVIDIA_VISIBLE_DEVICES", "env", "says", "The cards.", VISIBLE, "devices"),
        Row(
            "AMP_USE_HOST_DAEMON",
            "env",
            "kept",
            "1: eGPU's daemon is the host's.",
            TEXT,
            instead="gpushared, which is always the host's",
        ),
        Row(
            "ALIYUN_COM_GPU_MEM_RESERVED",
            "env",
            "kept",
            "What eGPU keeps of GPU_MEM_PER_DEVICE for itself, in MB; 10 without it.",
            TEXT,
            instead="nothing: gpushare keeps nothing of it for itself",
        ),
    ),
    rules=(Needs("cores", "memory", "add GPU_MEM_PER_DEVICE"),),
    domains=("AMP_", "GPU_MEM_PER_DEVICE", "GPU_UTIL_PER_DEVICE"),
    notes=("GPU_MEM_PER_DEVICE is of each card, in bytes.",),
)
