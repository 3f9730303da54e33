# SPDX-License-Identifier: Apache-2.0
"""Cloud platforms: AWS ECS, Google GKE, Baidu CCE, Alibaba ACK and cGPU, Tencent TKE."""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    BYTES,
    CARDS,
    CARDS_OR_ALL,
    CLIENTS,
    GIBS,
    MIBS,
    NAMES,
    PARTS,
    PERCENT,
    PERCENT_CAP,
    PERCENT_OR_CARDS,
    SWITCH,
    UNITS_OF_256_MIB,
    VISIBLE,
    WEIGHT,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    KeyLocation,
    VendorKey,
    annotation,
    env,
    excludes,
    label,
    limit,
    multiple_of,
    needs,
    node_file,
    node_label,
    not_both,
    one_card,
    part_or_cards,
    plugin,
    step_each,
    task,
    whole_without,
)
from gpushare.quota.node_settings import ALLOWED_MODE, APPLIED, PLACEMENT, POLICY

# AWS ECS: GPUs of a task definition. Its agent writes NVIDIA's variables into the container.
# Source: Amazon ECS API, ResourceRequirement and NvidiaMpsAllocation.
AWS: Final = Dialect(
    "aws",
    "AWS ECS",
    rows=(
        task.request("resourceRequirements.GPU", "Whole cards, or ALL.", CARDS_OR_ALL, "count"),
        task.request(
            "nvidiaMps.memory",
            "Memory of the card, in MiB, through MPS: gpushare.io/backend=mps is requested too.",
            MIBS,
            "memory",
            backend="mps",
        ),
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

# Google GKE: node pools whose GPUs are shared; a pod asks for one nvidia.com/gpu of such a node.
# Source: GKE API, GPUSharingConfig; the manual's node labels for sharing.
_STRATEGY: Final = choice(
    "time-sharing or mps",
    {
        "time-sharing": "best-effort",
        "mps": "fixed-share",
        "TIME_SHARING": "best-effort",
        "MPS": "fixed-share",
    },
)
_MOST: Final = "max_tenants of gpushare.yaml"
_POLICY: Final = "defaults.policy of gpushare.yaml"

GKE: Final = Dialect(
    "gke",
    "Google GKE",
    rows=(
        node_label.setting(
            "cloud.google.com/gke-gpu-sharing-strategy",
            "time-sharing: time slices. mps: equal parts of memory and compute.",
            _STRATEGY,
            setting=POLICY,
            instead=f"{APPLIED} defaults.policy; gpushare.io/policy of a pod has precedence. MPS "
            "itself is cards.NAME.backend of gpushare.yaml",
        ),
        node_label.setting(
            "cloud.google.com/gke-max-shared-clients-per-gpu",
            "Maximum number of containers on a card, 2 to 48.",
            CLIENTS,
            instead=_MOST,
        ),
        plugin.setting(
            "gpuSharingConfig.gpuSharingStrategy",
            "TIME_SHARING or MPS.",
            _STRATEGY,
            instead=_POLICY,
        ),
        plugin.setting(
            "gpuSharingConfig.maxSharedClientsPerGpu",
            "Maximum number of containers on a card, 2 to 48.",
            CLIENTS,
            instead=_MOST,
        ),
    ),
    translated_by="NVIDIA's device plugin allocates the card; gpushare.io/memory sets the share",
    domains=("cloud.google.com/gke-gpu-", "cloud.google.com/gke-max-shared-"),
)

# Baidu AI Cloud CCE: cGPU by the model of the card. What is asked is of all cards together.
# Source: CCE's manual on GPU sharing (cloud.baidu.com/doc/CCE/s/1lye233ps), as others quote it.
_MODEL: Final = "baidu.com/{model}_cgpu"

BAIDU: Final = Dialect(
    "baidu",
    "Baidu CCE",
    rows=(
        limit.request(
            _MODEL, "Cards of the model; whole cards if it is the only key.", CARDS, "count"
        ),
        limit.request(
            f"{_MODEL}_core",
            "Compute of all cards together, in steps of 5.",
            PERCENT_OR_CARDS,
            "cores",
            summed=True,
        ),
        limit.request(
            f"{_MODEL}_memory",
            "Memory of all cards together, in whole GiB.",
            GIBS,
            "memory",
            summed=True,
        ),
        limit.request(
            f"{_MODEL}_memory_percent",
            "Memory of all cards together, in percent of a card.",
            PERCENT_OR_CARDS,
            "memory-percent",
            summed=True,
        ),
    ),
    rules=(
        needs("cores", "memory", "add baidu.com/MODEL_cgpu_memory", strict=False),
        not_both("memory", "memory-percent", "keep one of the two"),
        step_each("cores", 5),
    ),
    equal_requests=True,
    domains=("baidu.com/",),
    notes=("The model in the key selects the node; in gpushare, gpushare.io/allow names models.",),
)


# --- Alibaba Cloud: ACK's shared GPUs and cGPU, and PAI's eGPU ---
#
# ACK's scheduler and device plugin turn limits and labels into cGPU's variables; users who run cGPU
# by docker write those themselves. eGPU has variables of its own.
#
# Source: alibabacloud.com 191140, 171786, use-cgpu-to-allocate-computing-power; the README of cGPU;
# AliyunContainerService/gpushare-device-plugin; kubeflow/arena; help.aliyun.com PAI eGPU. What is
# said of ALIYUN_COM_GPU_SCHD_WEIGHT, ALIYUN_COM_GPU_HIGH_PRIO and /proc/cgpu_km is the Elastic GPU
# Service's reference, as others quote it.

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
        "aliyun.com/gpu-mem is in GiB. Divide it by 1024 if it is for a plugin that counts MiB.",
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


# --- Tencent: qGPU, vcuda of gpu-manager, and the elastic GPU framework of before ---
#
# Source: Tencent Cloud 457/59103, 457/81034, 457/52079; tkestack/gpu-manager (2023-10);
# elastic-ai/elastic-gpu, elastic-gpu-scheduler.

#: All spellings of the node pool's label.
POLICIES: Final = choice(
    "be, fs, bs or the full names",
    {
        "best-effort": "best-effort",
        "be": "best-effort",
        "fixed-share": "fixed-share",
        "fs": "fixed-share",
        "burst-share": "burst-share",
        "bs": "burst-share",
    },
)
_PLACED: Final = "gpushare ps, gpushare inspect"

QGPU: Final = Dialect(
    "qgpu",
    "Tencent qGPU",
    rows=(
        limit.request(
            "tke.cloud.tencent.com/qgpu-core",
            "Compute: 5 to 100 in steps of 5, or N x 100 for whole cards.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(part_or_cards(least=5, strict=True), multiple_of(5)),
        ),
        limit.request("tke.cloud.tencent.com/qgpu-memory", "Memory of the card.", GIBS, "memory"),
        limit.request(
            "tke.cloud.tencent.com/qgpu-core-greedy",
            "Compute of an offline pod: its part of otherwise idle compute.",
            PERCENT,
            "weight",
        ),
        annotation.option(
            "tke.cloud.tencent.com/app-class",
            "online: requests only memory; other containers of the card wait for it. Or offline.",
            choice("online or offline", {"online": "online", "offline": "offline"}),
            "class",
        ),
        node_label.setting(
            "tke.cloud.tencent.com/qgpu-schedule-policy",
            "Compute policy of the node's cards. Default: best-effort.",
            POLICIES,
            setting=POLICY,
            instead=f"{APPLIED} defaults.policy; gpushare.io/policy of a pod has precedence",
        ),
        node_label.setting(
            "qgpu-device-enable",
            "enable: qGPU manages the node's cards.",
            instead="gpushare setup on the node",
        ),
    ),
    rules=(
        needs("cores", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        needs("weight", "memory", "add tke.cloud.tencent.com/qgpu-memory"),
        needs(
            "memory",
            "cores",
            "add tke.cloud.tencent.com/qgpu-core",
            unless=("class=online", "weight"),
        ),
        whole_without("memory"),
        excludes("cores", "class=online", "is not allowed for an online pod", "omit it"),
        excludes("cores", "weight", "conflicts with qgpu-core-greedy", "keep one of the two"),
        one_card("class", "offline"),
    ),
    assumed=(
        ImpliedValue(
            "policy",
            "native-burst-share",
            why="which divides compute that is not guaranteed",
            requires="weight",
        ),
    ),
    equal_requests=True,
    domains=("tke.cloud.tencent.com/qgpu-", "tke.cloud.tencent.com/app-"),
    notes=(
        "qGPU needs a driver up to 450.102.04, 470.161.03, 515.65.01 or 525.89.02.",
        "qGPU uses the node's policy (default best-effort); gpushare's default is fixed-share.",
        "The label takes be, fs and bs. The console's names, as 固定配额, cannot be label values.",
    ),
)

VCUDA: Final = Dialect(
    "vcuda",
    "Tencent vcuda",
    rows=(
        limit.request(
            "tencent.com/vcuda-core",
            "Compute: 1 to 100, or N x 100 for whole cards.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(part_or_cards(),),
        ),
        limit.request(
            "tencent.com/vcuda-memory", "Memory of the card.", UNITS_OF_256_MIB, "memory"
        ),
        annotation.request(
            "tencent.com/vcuda-core-limit",
            "Compute limit; if it exceeds vcuda-core, vcuda-core applies.",
            PERCENT_OR_CARDS,
            "cores",
            rules=(part_or_cards(),),
        ),
        *(
            annotation.record(name, meaning, instead=_PLACED)
            for name, meaning in (
                ("tencent.com/predicate-time", "When the scheduler chose."),
                ("tencent.com/predicate-gpu-idx-{card}", "The cards that it chose."),
                ("tencent.com/gpu-assigned", "Whether gpu-manager has set up the container."),
                ("tencent.com/vcuda-device", "The devices that it created."),
            )
        ),
        node_label.setting(
            "nvidia-device-enable",
            "enable: gpu-manager manages the node's cards.",
            instead="gpushare setup on the node",
        ),
        node_label.setting(
            "gaia.tencent.com/gpu-model",
            "The model of the node's cards.",
            instead="gpushare ls; gpushare.io/allow accepts models",
        ),
    ),
    rules=(needs("cores", "memory", "add tencent.com/vcuda-memory"), whole_without("memory")),
    equal_requests=True,
    domains=("tencent.com/vcuda-",),
    notes=("vcuda-core above 100 must be whole cards: 150 is invalid.",),
)

ELASTIC: Final = Dialect(
    "elasticgpu",
    "Elastic GPU",
    rows=(
        *(
            row
            for domain in ("elasticgpu.com", "elasticgpu.io")
            for row in (
                limit.request(
                    f"{domain}/gpu-core",
                    "Compute: 1 to 100, or N x 100 for whole cards.",
                    PERCENT_OR_CARDS,
                    "cores",
                    rules=(part_or_cards(),),
                ),
                limit.request(f"{domain}/gpu-memory", "Memory of the card.", MIBS, "memory"),
            )
        ),
        annotation.record(
            "elasticgpu.io/egpuc-{container}",
            "The ElasticGPUClaim of a container, which has the request.",
            instead="gpushare.io/container.NAME.memory",
        ),
    ),
    domains=("elasticgpu.com/", "elasticgpu.io/"),
)
