# SPDX-License-Identifier: Apache-2.0
"""The keys and values that requests are generated from.

They are written out, not read from gpushare: both recordings must get the same requests, however
the tables of the dialects are stored.
"""

from __future__ import annotations

from typing import Final, TypeAlias

#: By dialect, the values of each key.
Table: TypeAlias = dict[str, dict[str, tuple[str, ...]]]

_SIZE: Final = ("4GiB", "512MiB", "1g", "8Gi", "2GiB", "16GiB", "100GiB", "200GiB", "4Q", "0", "-1")
_MIB: Final = (
    "4096",
    "8192",
    "1024",
    "2048",
    "500",
    "4096m",
    "4g",
    "0",
    "500000",
    "abc",
    "",
    "1e3",
)
_GIB: Final = ("4", "8", "16", "2", "0", "300", "-3", "x", "35")
_PERCENT: Final = ("10", "25", "30", "50", "100", "0", "101", "-5", "x", "33.3")
_COUNT: Final = ("1", "1", "1", "2", "4", "5", "0", "many")
_CARDS: Final = ("0", "1", "0,1", "3", "7", "GPU-nope", "all", "none", "void", "", "0,0")
_MODELS: Final = ("H200", "A100", "A100,H200", "h200", "T4", "")
_FLAG: Final = ("true", "false", "1", "0", "yes")
_FRACTION: Final = ("0.5", "0.25", "1", "1.0", "0.05", "2", "0", "1.5", "half")
_TEXT: Final = ("x", "", "node-1", "1700000000", "success")

#: gpushare's own keys; an annotation gpushare.io/KEY or a variable GPUSHARE_KEY.
OWN: Final = {
    "memory": _SIZE,
    "memory-percent": _PERCENT,
    "memory-limit": ("8GiB", "20GiB", "2GiB", "300GiB", "x"),
    "cores": _PERCENT,
    "count": _COUNT,
    "devices": _CARDS,
    "allow": _MODELS,
    "deny": _MODELS,
    "policy": ("fixed-share", "burst-share", "best-effort", "native-burst-share", "fair"),
    "weight": ("1", "3", "100", "1000", "0", "1001"),
    "priority": ("0", "3", "5", "9", "10"),
    "class": ("online", "offline", "batch"),
    "placement": ("binpack", "spread", "topology", "random"),
    "numa": ("none", "bind", "near"),
    "oversubscribe": ("none", "host"),
    "backend": ("interposer", "driver", "exclusive", "mig", "mps", "magic"),
    "memroy": ("4GiB",),
    "Cores": ("10",),
}
WRONG: Final = ("memroy", "Cores")
_NUMBERS: Final = {"mib": _MIB, "gib": _GIB, "percent": _PERCENT, "count": _COUNT}
_WORDS: Final = {"cards": _CARDS, "models": _MODELS, "flag": _FLAG, "text": _TEXT}
_KINDS: Final = {**_NUMBERS, **_WORDS, "fraction": _FRACTION}


def _table(text: str) -> Table:
    """Return a table of lines with a dialect, the kind or the values of its keys, and the keys."""
    found: Table = {}
    for line in text.strip().splitlines():
        dialect, kind, *keys = line.split()
        values = _KINDS.get(kind) or tuple(kind.split("|"))
        found.setdefault(dialect, {}).update(dict.fromkeys(keys, values))
    return found


#: By dialect, what reaches a container runtime: annotations of its pod, and its environment.
ANNOTATIONS: Final = _table("""
hami models nvidia.com/use-gputype nvidia.com/nouse-gputype
hami cards nvidia.com/use-gpuuuid nvidia.com/nouse-gpuuuid
hami flag nvidia.com/numa-bind
hami hami-core|mig|mps|x nvidia.com/vgpu-mode
hami binpack|spread|topology-aware|mutex|x hami.io/gpu-scheduler-policy
hami binpack|spread hami.io/node-scheduler-policy
hami GPU-1,NVIDIA,4096,30:; hami.io/vgpu-devices-allocated
hami text hami.io/bind-phase
volcano cards volcano.sh/vgpu-use-gpuuuid volcano.sh/vgpu-nouse-gpuuuid
volcano hami-core|mig|x volcano.sh/vgpu-mode
volcano text volcano.sh/vgpu-podgroup-policy
alibaba 0|1 ALIYUN_COM_GPU_MEM_IDX
alibaba gib ALIYUN_COM_GPU_MEM_POD
alibaba flag ALIYUN_COM_GPU_MEM_ASSIGNED
qgpu online|offline|x tke.cloud.tencent.com/app-class
vcuda percent tencent.com/vcuda-core-limit
vcuda 0|1 tencent.com/predicate-gpu-idx-0
vcuda flag tencent.com/gpu-assigned
elasticgpu percent elasticgpu.io/egpuc-main
mgpu 1|2|[1,2] vke.volcengine.com/container-multiple-gpu
mgpu fixed-share|burst-share|best-effort vke.volcengine.com/mgpu-compute-policy
mgpu 0|1 vke.volcengine.com/gpu-index-container-main
kai 4Gi|4096Mi|0|x nvidia.com/container.main.gpu-memory.request
kai 8192|2048|8Gi|x nvidia.com/container.main.gpu-memory.limit
kai 8Gi nvidia.com/container.other.gpu-memory.limit
kai time-slicing|x nvidia.com/container.main.gpu-compute.mode
kai cards nvidia.com/container.main.gpus.devices
kai fraction gpu-fraction gpu-fraction.limit
kai mib gpu-memory gpu-memory.limit
kai count gpu-fraction-num-devices
kai main|other gpu-fraction-container-name
kubeshare fraction kubeshare/gpu_request kubeshare/gpu_limit
kubeshare 4294967296|1073741824|0|x kubeshare/gpu_mem
kubeshare abc|0 kubeshare/GPUID
""")
ENV: Final = _table("""
nvidia cards NVIDIA_VISIBLE_DEVICES
nvidia compute,utility|all|video|graphics,compute|x NVIDIA_DRIVER_CAPABILITIES
nvidia cuda>=12.0|cuda>=99.0|cuda>=|brand=tesla NVIDIA_REQUIRE_CUDA
nvidia flag NVIDIA_DISABLE_REQUIRE
nvidia all NVIDIA_MIG_CONFIG_DEVICES
nvidia 0 NVIDIA_IMEX_CHANNELS
nvidia 4096|4Gi|x NVIDIA_GPU_MEMORY_REQUEST
nvidia 8192|2048|8Gi|x NVIDIA_GPU_MEMORY_LIMIT
nvidia 0=4G|0=4G,1=8G|4G|0=x CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
nvidia percent CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
nvidia 0|1|2 CUDA_MPS_CLIENT_PRIORITY
hami mib CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_MEMORY_LIMIT_0 CUDA_DEVICE_MEMORY_LIMIT_1
hami percent CUDA_DEVICE_SM_LIMIT CUDA_DEVICE_SM_LIMIT_0
hami cards NVIDIA_VISIBLE_DEVICES
hami force|default|disable|FORCE|x GPU_CORE_UTILIZATION_POLICY
hami 0|1|2 CUDA_TASK_PRIORITY
hami flag CUDA_OVERSUBSCRIBE CUDA_DISABLE_CONTROL ACTIVE_OOM_KILLER
hami 0|4 LIBCUDA_LOG_LEVEL
alibaba gib ALIYUN_COM_GPU_MEM_CONTAINER
alibaba 140|16|0|x ALIYUN_COM_GPU_MEM_DEV
alibaba GiB|MiB|x ALIYUN_COM_GPU_MEM_UNIT
alibaba cards ALIYUN_COM_GPU_VISIBLE_DEVICES
alibaba 10|30|x ALIYUN_COM_GPU_SCHD_WEIGHT
alibaba 0|1|x ALIYUN_COM_GPU_HIGH_PRIO
alibaba percent GPU_UTIL_PER_DEVICE
alibaba flag CGPU_DISABLE
alibaba 0|1 ALIYUN_COM_GPU_MEM_IDX
egpu flag AMP_VGPU_ENABLE AMP_USE_HOST_DAEMON
egpu gib GPU_MEM_PER_DEVICE ALIYUN_COM_GPU_MEM_RESERVED
egpu percent GPU_UTIL_PER_DEVICE
kai 4Gi|0.5|x RUNAI_GPU_MEMORY_LIMIT
kai 4096|4Gi|x NVIDIA_GPU_MEMORY_REQUEST
kai 8192|2048|8Gi|x NVIDIA_GPU_MEMORY_LIMIT
nvshare flag NVSHARE_ENABLE_SINGLE_OVERSUB NVSHARE_DEBUG
orionx count ORION_VGPU
orionx mib ORION_GMEM
orionx percent ORION_RATIO
orionx flag ORION_RESERVED ORION_CROSS_NODE
orionx text ORION_GROUP_ID
""")
#: What no runtime is given: resource limits and labels, for manifests.
LIMITS: Final = _table("""
nvidia count nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/mig-1g.10gb
nvidia percent nvidia.com/mps-core
hami count nvidia.com/gpu nvidia.com/gpualloc
hami mib nvidia.com/gpumem
hami percent nvidia.com/gpumem-percentage nvidia.com/gpucores
hami 0|1|2 nvidia.com/priority
volcano count volcano.sh/vgpu-number
volcano mib volcano.sh/vgpu-memory
volcano percent volcano.sh/vgpu-memory-percentage volcano.sh/vgpu-cores
alibaba gib aliyun.com/gpu-mem
alibaba percent aliyun.com/gpu-core.percentage
alibaba count aliyun.com/gpu
qgpu percent tke.cloud.tencent.com/qgpu-core tke.cloud.tencent.com/qgpu-core-greedy
qgpu gib tke.cloud.tencent.com/qgpu-memory
vcuda percent tencent.com/vcuda-core
vcuda gib tencent.com/vcuda-memory
elasticgpu percent elasticgpu.io/gpu-core elasticgpu.com/gpu-core
elasticgpu gib elasticgpu.io/gpu-memory
mgpu percent vke.volcengine.com/mgpu-core
mgpu mib vke.volcengine.com/mgpu-memory
huawei 8|32|0|x volcano.sh/gpu-mem.128Mi
huawei percent volcano.sh/gpu-core.percentage
baidu count baidu.com/v100_cgpu
baidu percent baidu.com/v100_cgpu_core baidu.com/v100_cgpu_memory_percent
baidu gib baidu.com/v100_cgpu_memory
koordinator count koordinator.sh/gpu.shared
koordinator percent koordinator.sh/gpu-core koordinator.sh/gpu-memory-ratio koordinator.sh/gpu
koordinator 4Gi|8Gi|x koordinator.sh/gpu-memory
nvshare count nvshare.com/gpu
orionx count virtaitech.com/gpu
""")
LABELS: Final = _table("""
alibaba count aliyun.com/gpu-count
huawei count volcano.sh/gpu-num
koordinator HAMi-core|x koordinator.sh/gpu-isolation-provider
kubeshare fraction sharedgpu/gpu_request
kubeshare 4294967296|x sharedgpu/gpu_mem
""")

#: Every key of a request, the longest first: what a sentence may name.
NAMES: Final = sorted(
    {
        *(f"gpushare.io/{key}" for key in OWN),
        *(f"GPUSHARE_{key.upper().replace('-', '_')}" for key in OWN),
        *(
            name
            for table in (ANNOTATIONS, ENV, LIMITS, LABELS)
            for keys in table.values()
            for name in keys
        ),
    },
    key=lambda name: (-len(name), name),
)
