# SPDX-License-Identifier: Apache-2.0
"""Schedulers and libraries: Koordinator, KubeShare, nvshare, OrionX, KAI, Volcano, Docker Swarm."""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    ACCESS,
    BYTES,
    CARDS,
    MIBS,
    MIBS_OR_ALL,
    NAMES,
    PART,
    PART_BESIDE_CARDS,
    PART_UP_TO_ONE,
    PERCENT_CAP,
    PERCENT_OR_ANY,
    PERCENT_OR_CARDS,
    QUANTITY,
    QUANTITY_OR_PART,
    UNITS_OF_128_MIB,
    VISIBLE,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    annotation,
    env,
    label,
    least_bytes,
    limit,
    needs,
    node_file,
    not_above,
    not_both,
    step_each,
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
KUBESHARE: Final = Dialect(
    "kubeshare",
    "KubeShare",
    rows=tuple(
        row
        for prefix, keys in (("kubeshare", annotation), ("sharedgpu", label))
        for row in (
            keys.request(
                f"{prefix}/gpu_request", "Guaranteed compute, 0 to 1.", PART_UP_TO_ONE, "cores"
            ),
            keys.option(
                f"{prefix}/gpu_limit",
                "Compute limit; if it exceeds gpu_request, gpu_request applies.",
                PART_UP_TO_ONE,
                "cores",
            ),
            keys.request(f"{prefix}/gpu_mem", "Memory in bytes.", BYTES, "memory"),
            keys.record(f"{prefix}/GPUID", "The virtual GPU that the scheduler chose."),
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
            instead="GPUSHARE_REMOTE; 1 means that if the node has no cards and one server",
        ),
        env.record("ORION_GROUP_ID", "Owner of the vGPUs."),
    ),
    domains=("ORION_", "virtaitech.com/"),
    notes=(
        "ORION_GMEM counts MB of 2^20 bytes, as nvidia-smi shows them.",
        "OrionX may place two vGPUs on one card; gpushare places each on a separate card.",
    ),
)


# --- KAI-Scheduler and Run:ai: fractions of a card by annotations of the pod ---
#
# The newer annotations name their container. The older ones are for the pod's first container, or
# for the one that gpu-fraction-container-name names.
#
# Source: KAI-Scheduler 0.18 (pkg/common/constants, pkg/common/resources, docs/gpu-sharing), its
# gpu-fractioning (annotations), Run:ai's manual on GPU fractions.

_LEAST: Final = least_bytes(10**6)  # less is no whole MB to the driver's limits
_COMPUTE_MODE: Final = choice(
    "time-slicing or sm-sharing", {"time-slicing": None, "sm-sharing": "mps"}
)

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
        *(
            annotation.option(
                name, "time-slicing, or sm-sharing: through MPS.", _COMPUTE_MODE, "backend"
            )
            for name in (
                "nvidia.com/container.{container}.gpu-compute.mode",
                "kai.scheduler/gpu-compute-sharing-mode",
            )
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


# --- the keys of volcano.sh: Volcano's own vGPU, and Huawei Cloud CCE, which runs Volcano ---

# Volcano's vGPU: HAMi's device plugin behind Volcano's scheduler, under names of its own.
# Source: volcano-sh/volcano 2026-08 (pkg/scheduler/api/devices/nvidia/vgpu), its device plugin.
_MODE: Final = choice(
    "hami-core, mig or mps", {"hami-core": "interposer", "mig": "mig", "mps": "mps"}
)

VOLCANO: Final = Dialect(
    "volcano",
    "Volcano vGPU",
    rows=(
        limit.request("volcano.sh/vgpu-number", "Physical cards, each shared.", CARDS, "count"),
        limit.request(
            "volcano.sh/vgpu-memory",
            "Memory of each card, times the plugin's memory factor; 0 is all of it.",
            MIBS_OR_ALL,
            "memory",
        ),
        limit.request(
            "volcano.sh/vgpu-memory-percentage",
            "Memory of each card, in percent.",
            PERCENT_OR_ANY,
            "memory-percent",
        ),
        limit.request(
            "volcano.sh/vgpu-cores",
            "Compute of each card; 100 is a whole one, 0 any.",
            PERCENT_OR_ANY,
            "cores",
        ),
        annotation.option("volcano.sh/vgpu-use-gpuuuid", "Only these cards.", NAMES, "allow"),
        annotation.option("volcano.sh/vgpu-nouse-gpuuuid", "Not these cards.", NAMES, "deny"),
        annotation.option("volcano.sh/vgpu-mode", "Sharing backend.", _MODE, "backend"),
        annotation.option(
            "volcano.sh/vgpu-podgroup-policy",
            "spread: place no two pods of a group on one card.",
            instead="gpushare.io/placement=spread: the emptiest card of the node",
        ),
    ),
    rules=(not_both("memory-percent", "memory", "keep one of the two"),),
    assumed=(
        ImpliedValue(
            "memory-percent", "100", ("memory",), "Volcano's default if no memory is requested"
        ),
    ),
    translated_by="Volcano's vGPU device plugin, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
    domains=("volcano.sh/vgpu-",),
    notes=("Memory and compute are of each card.",),
)

# Huawei Cloud CCE: virtual GPUs of its Volcano, over xGPU.
# Source: CCE's manual, "Using GPU Virtualization", "Equal Distribution Scheduling on Virtual
# GPUs", "Kubernetes' Default GPU Scheduling in GPU Virtualization"; hce_xgpu_0003.
_POLICY: Final = choice(
    "0 to 6",
    {
        "0": "best-effort",
        "1": "fixed-share",
        "2": "best-effort",
        "3": "best-effort",
        "4": "native-burst-share",
        "5": "burst-share",
        "6": "native-burst-share",
    },
)

HUAWEI: Final = Dialect(
    "huawei",
    "Huawei CCE",
    rows=(
        limit.request(
            "volcano.sh/gpu-mem.128Mi",
            "Memory of all cards together, in units of 128 MiB.",
            UNITS_OF_128_MIB,
            "memory",
            summed=True,
        ),
        limit.request(
            "volcano.sh/gpu-core.percentage",
            "Compute of all cards together, in steps of 5; 100 is a whole card.",
            PERCENT_OR_CARDS,
            "cores",
            summed=True,
        ),
        label.option(
            "volcano.sh/gpu-num", "Number of cards to divide memory and compute by.", CARDS, "count"
        ),
        limit.request(
            "nvidia.com/gpu",
            "Fraction of a card's memory; whole numbers are whole cards.",
            PART_BESIDE_CARDS,
            "memory-percent",
        ),
        node_file.setting(
            "/proc/xgpu/{card}/policy",
            "0 native, 1 fixed, 2 average, 3 preempt, 4 weighted preempt, 5 hybrid, 6 weakly "
            "weighted.",
            _POLICY,
            instead="defaults.policy of gpushare.yaml, or gpushare card policy",
        ),
    ),
    rules=(
        needs("cores", "memory", "add volcano.sh/gpu-mem.128Mi", strict=False),
        step_each("cores", 5),
    ),
    equal_requests=True,
    domains=("volcano.sh/gpu-",),
    notes=("volcano.sh/gpu-mem.128Mi must divide into whole units of 128 MiB on each card.",),
)

# Docker Swarm: what `docker service create --generic-resource gpu=1` allocates of a node's
# node-generic-resources. Source: swarmkit, api/genericresource, EnvFormat; NVIDIA's toolkit,
# swarm-resource.
SWARM: Final = Dialect(
    "swarm",
    "Docker Swarm",
    rows=tuple(
        env.request(
            f"DOCKER_RESOURCE_{kind}", "The cards that Swarm's scheduler chose.", VISIBLE, "devices"
        )
        for kind in ("GPU", "NVIDIA-GPU")
    ),
    domains=("DOCKER_RESOURCE_",),
    notes=(
        "A kind of resource other than gpu and nvidia-gpu is not known to be a card.",
        "Name each card on its node: of a resource that is only counted, the number is an index.",
    ),
)
