# SPDX-License-Identifier: Apache-2.0
"""Alibaba Cloud: ACK's shared GPUs and cGPU, and PAI's eGPU.

ACK's scheduler and device plugin turn limits and labels into cGPU's variables; users who run cGPU
by docker write those themselves. eGPU has variables of its own.

Source: alibabacloud.com 191140, 171786, use-cgpu-to-allocate-computing-power; the README of cGPU;
AliyunContainerService/gpushare-device-plugin; kubeflow/arena; help.aliyun.com PAI eGPU. What is
said of ALIYUN_COM_GPU_SCHD_WEIGHT, ALIYUN_COM_GPU_HIGH_PRIO and /proc/cgpu_km is the Elastic GPU
Service's reference, as others quote it.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    BYTES,
    CARDS,
    GIBS,
    NAMES,
    PARTS,
    PERCENT,
    SWITCH,
    VISIBLE,
    WEIGHT,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    KeyLocation,
    VendorKey,
    env,
    label,
    limit,
    multiple_of,
    needs,
    node_file,
    node_label,
    one_card,
)
from gpushare.quota.node_settings import ALLOWED_MODE, APPLIED, PLACEMENT

_BOTH: Final[tuple[KeyLocation, ...]] = ("annotation", "env")
_CLASS: Final = choice(
    "1 or 0", {"1": "online", "true": "online", "0": "offline", "false": "offline"}
)

_LIMITS: Final = (
    limit.request(
        "aliyun.com/gpu-mem",
        "Memory of all cards together; aliyun.com/gpu-count divides it.",
        GIBS,
        "memory",
        summed=True,
    ),
    limit.request(
        "aliyun.com/gpu-core.percentage",
        "Compute of a card, in steps of 5, on nodes of mode core_mem.",
        PERCENT,
        "cores",
        rules=(multiple_of(5),),
    ),
    limit.request(
        "aliyun.com/gpu",
        "Whole cards, close to each other, on nodes of mode topology.",
        CARDS,
        "count",
    ),
    label.option(
        "aliyun.com/gpu-count",
        "Cards of one node over which aliyun.com/gpu-mem is divided, evenly.",
        CARDS,
        "count",
    ),
)

_ENV: Final = (
    env.request(
        "ALIYUN_COM_GPU_MEM_CONTAINER",
        "Memory of each card, as a fraction of ALIYUN_COM_GPU_MEM_DEV.",
        PARTS,
        "memory-percent",
        fraction_of="ALIYUN_COM_GPU_MEM_DEV",
    ),
    env.request(
        "ALIYUN_COM_GPU_MEM_DEV",
        "Memory of a whole card, in the unit of ALIYUN_COM_GPU_MEM_CONTAINER.",
        PARTS,
        requires="ALIYUN_COM_GPU_MEM_CONTAINER",
        instead="the total for ALIYUN_COM_GPU_MEM_CONTAINER",
    ),
    env.record(
        "ALIYUN_COM_GPU_MEM_UNIT",
        "GiB or GB: the unit of both.",
        instead="nothing: their ratio is the same in every unit",
    ),
    env.request("ALIYUN_COM_GPU_VISIBLE_DEVICES", "The cards that are shared.", NAMES, "devices"),
    env.option(
        "NVIDIA_VISIBLE_DEVICES", "The cards that ACK's scheduler chose.", VISIBLE, "devices"
    ),
    env.option(
        "ALIYUN_COM_GPU_SCHD_WEIGHT", "Weight among the containers of a card.", WEIGHT, "weight"
    ),
    env.option(
        "ALIYUN_COM_GPU_HIGH_PRIO",
        "1: the card's other containers wait while it has work.",
        _CLASS,
        "class",
    ),
    env.request("GPU_UTIL_PER_DEVICE", "Compute of each card.", PERCENT, "cores"),
    env.option(
        "CGPU_DISABLE",
        "1 or true disables cGPU.",
        instead="nothing: the quota stays in effect; a container cannot disable its own quota",
    ),
)

# Source: ACK's manual, "Enable scheduling features": a node has one mode, and the resources of the
# others are 0. With core_mem, 100 percent of a card's compute is a whole card.
_MODE: Final = choice(
    "default, topology, share, cgpu, core_mem or mps",
    {
        "default": "exclusive",
        "topology": "exclusive",
        "share": "shared",
        "cgpu": "shared",
        "core_mem": "any",
        "mps": "shared",
    },
)

_NODE: Final = (
    node_label.setting(
        "ack.node.gpu.schedule",
        "Mode of the node's cards: default or topology (whole cards), share, cgpu, core_mem or "
        "mps (shares).",
        _MODE,
        setting=ALLOWED_MODE,
        instead=f"{APPLIED} allowed_mode of all cards: exclusive or shared; any for core_mem",
    ),
    node_label.setting(
        "ack.node.gpu.placement",
        "binpack or spread over the node's cards.",
        choice("binpack or spread", {"binpack": "binpack", "spread": "spread"}),
        setting=PLACEMENT,
        instead=f"{APPLIED} defaults.placement; gpushare.io/placement of a pod has precedence",
    ),
    node_file.setting(
        "/proc/cgpu_km/{card}/policy",
        "How a card's time is divided: 0 in equal slices of max_inst, 1 equally among active "
        "containers, 2 by weight, 3 in percent, 4 softly, 5 by the driver.",
        instead="defaults.policy: fixed-share for 0 and 3, native-burst-share for 2, otherwise "
        "best-effort",
    ),
    node_file.setting(
        "/proc/cgpu_km/{card}/max_inst",
        "Maximum number of containers on a card.",
        instead="max_tenants",
    ),
    node_file.setting(
        "/proc/cgpu_km/prio_ratio",
        "Maximum compute, in percent, of containers with ALIYUN_COM_GPU_HIGH_PRIO.",
        instead="gpushare.io/cores with fixed-share, on the container of class online",
    ),
)

_BOOKS: Final = (
    *(
        VendorKey(
            name, meaning, where=where, role="record", instead="gpushare ps, gpushare inspect"
        )
        for name, meaning in (
            ("ALIYUN_COM_GPU_MEM_IDX", "The card that the scheduler chose."),
            ("ALIYUN_COM_GPU_MEM_POD", "Memory that all containers of the pod request together."),
            ("ALIYUN_COM_GPU_MEM_ASSIGNED", "Whether the device plugin has set up the container."),
            ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "When the scheduler chose."),
            ("ALIYUN_COM_GPU_MEM_ASSIGN_TIME", "When the device plugin set it up."),
        )
        for where in _BOTH
    ),
    label.record(
        "topology.kubernetes.io/gpu-group",
        "The cards that the scheduler chose, close to each other.",
        instead="gpushare.io/placement=topology, the default for several cards",
    ),
)

ALIBABA: Final = Dialect(
    "alibaba",
    "Alibaba ACK and cGPU",
    rows=(*_LIMITS, *_ENV, *_NODE, *_BOOKS),
    rules=(
        needs("cores", "memory", "request memory too: aliyun.com/gpu-mem"),
        needs(
            "devices",
            "memory",
            "write ALIYUN_COM_GPU_MEM_CONTAINER and ALIYUN_COM_GPU_MEM_DEV",
            unless=("count",),
        ),
        one_card("cores"),
    ),
    assumed=(
        ImpliedValue(
            "policy", "native-burst-share", why="the policy that uses weights", requires="weight"
        ),
    ),
    translated_by="ACK's device plugin, to ALIYUN_COM_GPU_MEM_CONTAINER and _DEV",
    domains=("aliyun.com/gpu", "ALIYUN_COM_GPU_", "ack.node.gpu."),
    notes=(
        "aliyun.com/gpu-mem is of all cards together, ALIYUN_COM_GPU_MEM_CONTAINER of each.",
        "cGPU refuses cudaMallocManaged; gpushare charges it.",
        "A part of ALIYUN_COM_GPU_MEM_DEV is exact: 4 of 15 of a card with 16160 MiB are 4309 MiB.",
    ),
)

EGPU: Final = Dialect(
    "egpu",
    "Alibaba PAI eGPU",
    rows=(
        env.request(
            "AMP_VGPU_ENABLE",
            "1 enables eGPU; GPU_MEM_PER_DEVICE sets the amount.",
            SWITCH,
            requires="GPU_MEM_PER_DEVICE",
        ),
        env.request(
            "GPU_MEM_PER_DEVICE",
            "Memory of each card.",
            BYTES,
            "memory",
            requires="AMP_VGPU_ENABLE",
        ),
        env.request("GPU_UTIL_PER_DEVICE", "Compute of each card.", PERCENT, "cores"),
        env.option("NVIDIA_VISIBLE_DEVICES", "The cards.", VISIBLE, "devices"),
        env.record(
            "AMP_USE_HOST_DAEMON",
            "1: use the host's eGPU daemon.",
            instead="gpushared, which always runs on the host",
        ),
        env.record(
            "ALIYUN_COM_GPU_MEM_RESERVED",
            "Memory of GPU_MEM_PER_DEVICE that eGPU reserves for itself, in MB. Default: 10.",
            instead="nothing: gpushare reserves nothing for itself",
        ),
    ),
    rules=(needs("cores", "memory", "add GPU_MEM_PER_DEVICE"),),
    domains=("AMP_", "GPU_MEM_PER_DEVICE", "GPU_UTIL_PER_DEVICE"),
    notes=("GPU_MEM_PER_DEVICE applies to each card, in bytes.",),
)
