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

#: By dialect, what reaches a container runtime: annotations of its pod, and its environment.
ANNOTATIONS: Final[Table] = {
    "hami": {
        "nvidia.com/use-gputype": _MODELS,
        "nvidia.com/nouse-gputype": _MODELS,
        "nvidia.com/use-gpuuuid": _CARDS,
        "nvidia.com/nouse-gpuuuid": _CARDS,
        "nvidia.com/numa-bind": _FLAG,
        "nvidia.com/vgpu-mode": ("hami-core", "mig", "mps", "x"),
        "hami.io/gpu-scheduler-policy": ("binpack", "spread", "topology-aware", "mutex", "x"),
        "hami.io/node-scheduler-policy": ("binpack", "spread"),
        "hami.io/vgpu-devices-allocated": ("GPU-1,NVIDIA,4096,30:;",),
        "hami.io/bind-phase": _TEXT,
    },
    "volcano": {
        "volcano.sh/vgpu-use-gpuuuid": _CARDS,
        "volcano.sh/vgpu-nouse-gpuuuid": _CARDS,
        "volcano.sh/vgpu-mode": ("hami-core", "mig", "x"),
        "volcano.sh/vgpu-podgroup-policy": _TEXT,
    },
    "alibaba": {
        "ALIYUN_COM_GPU_MEM_IDX": ("0", "1"),
        "ALIYUN_COM_GPU_MEM_POD": _GIB,
        "ALIYUN_COM_GPU_MEM_ASSIGNED": _FLAG,
    },
    "qgpu": {"tke.cloud.tencent.com/app-class": ("online", "offline", "x")},
    "vcuda": {
        "tencent.com/vcuda-core-limit": _PERCENT,
        "tencent.com/predicate-gpu-idx-0": ("0", "1"),
        "tencent.com/gpu-assigned": _FLAG,
    },
    "elasticgpu": {"elasticgpu.io/egpuc-main": _PERCENT},
    "mgpu": {
        "vke.volcengine.com/container-multiple-gpu": ("1", "2", "[1,2]"),
        "vke.volcengine.com/mgpu-compute-policy": ("fixed-share", "burst-share", "best-effort"),
        "vke.volcengine.com/gpu-index-container-main": ("0", "1"),
    },
    "kai": {
        "nvidia.com/container.main.gpu-memory.request": ("4Gi", "4096Mi", "0", "x"),
        "nvidia.com/container.main.gpu-memory.limit": ("8192", "2048", "8Gi", "x"),
        "nvidia.com/container.other.gpu-memory.limit": ("8Gi",),
        "nvidia.com/container.main.gpu-compute.mode": ("time-slicing", "x"),
        "nvidia.com/container.main.gpus.devices": _CARDS,
        "gpu-fraction": _FRACTION,
        "gpu-memory": _MIB,
        "gpu-memory.limit": _MIB,
        "gpu-fraction.limit": _FRACTION,
        "gpu-fraction-num-devices": _COUNT,
        "gpu-fraction-container-name": ("main", "other"),
    },
    "kubeshare": {
        "kubeshare/gpu_request": _FRACTION,
        "kubeshare/gpu_limit": _FRACTION,
        "kubeshare/gpu_mem": ("4294967296", "1073741824", "0", "x"),
        "kubeshare/GPUID": ("abc", "0"),
    },
}
ENV: Final[Table] = {
    "nvidia": {
        "NVIDIA_VISIBLE_DEVICES": _CARDS,
        "NVIDIA_DRIVER_CAPABILITIES": ("compute,utility", "all", "video", "graphics,compute", "x"),
        "NVIDIA_REQUIRE_CUDA": ("cuda>=12.0", "cuda>=99.0", "cuda>=", "brand=tesla"),
        "NVIDIA_DISABLE_REQUIRE": _FLAG,
        "NVIDIA_MIG_CONFIG_DEVICES": ("all",),
        "NVIDIA_IMEX_CHANNELS": ("0",),
        "NVIDIA_GPU_MEMORY_REQUEST": ("4096", "4Gi", "x"),
        "NVIDIA_GPU_MEMORY_LIMIT": ("8192", "2048", "8Gi", "x"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ("0=4G", "0=4G,1=8G", "4G", "0=x"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": _PERCENT,
        "CUDA_MPS_CLIENT_PRIORITY": ("0", "1", "2"),
    },
    "hami": {
        "CUDA_DEVICE_MEMORY_LIMIT": _MIB,
        "CUDA_DEVICE_MEMORY_LIMIT_0": _MIB,
        "CUDA_DEVICE_MEMORY_LIMIT_1": _MIB,
        "CUDA_DEVICE_SM_LIMIT": _PERCENT,
        "CUDA_DEVICE_SM_LIMIT_0": _PERCENT,
        "NVIDIA_VISIBLE_DEVICES": _CARDS,
        "GPU_CORE_UTILIZATION_POLICY": ("force", "default", "disable", "FORCE", "x"),
        "CUDA_TASK_PRIORITY": ("0", "1", "2"),
        "CUDA_OVERSUBSCRIBE": _FLAG,
        "CUDA_DISABLE_CONTROL": _FLAG,
        "LIBCUDA_LOG_LEVEL": ("0", "4"),
        "ACTIVE_OOM_KILLER": _FLAG,
    },
    "alibaba": {
        "ALIYUN_COM_GPU_MEM_CONTAINER": _GIB,
        "ALIYUN_COM_GPU_MEM_DEV": ("140", "16", "0", "x"),
        "ALIYUN_COM_GPU_MEM_UNIT": ("GiB", "MiB", "x"),
        "ALIYUN_COM_GPU_VISIBLE_DEVICES": _CARDS,
        "ALIYUN_COM_GPU_SCHD_WEIGHT": ("10", "30", "x"),
        "ALIYUN_COM_GPU_HIGH_PRIO": ("0", "1", "x"),
        "GPU_UTIL_PER_DEVICE": _PERCENT,
        "CGPU_DISABLE": _FLAG,
        "ALIYUN_COM_GPU_MEM_IDX": ("0", "1"),
    },
    "egpu": {
        "AMP_VGPU_ENABLE": _FLAG,
        "GPU_MEM_PER_DEVICE": _GIB,
        "GPU_UTIL_PER_DEVICE": _PERCENT,
        "AMP_USE_HOST_DAEMON": _FLAG,
        "ALIYUN_COM_GPU_MEM_RESERVED": _GIB,
    },
    "kai": {
        "RUNAI_GPU_MEMORY_LIMIT": ("4Gi", "0.5", "x"),
        "NVIDIA_GPU_MEMORY_REQUEST": ("4096", "4Gi", "x"),
        "NVIDIA_GPU_MEMORY_LIMIT": ("8192", "2048", "8Gi", "x"),
    },
    "nvshare": {"NVSHARE_ENABLE_SINGLE_OVERSUB": _FLAG, "NVSHARE_DEBUG": _FLAG},
    "orionx": {
        "ORION_VGPU": _COUNT,
        "ORION_GMEM": _MIB,
        "ORION_RATIO": _PERCENT,
        "ORION_RESERVED": _FLAG,
        "ORION_CROSS_NODE": _FLAG,
        "ORION_GROUP_ID": _TEXT,
    },
}
#: What no runtime is given: resource limits and labels, for manifests.
LIMITS: Final[Table] = {
    "nvidia": {
        "nvidia.com/gpu": _COUNT,
        "nvidia.com/gpu.shared": _COUNT,
        "nvidia.com/mps-core": _PERCENT,
        "nvidia.com/mig-1g.10gb": _COUNT,
    },
    "hami": {
        "nvidia.com/gpu": _COUNT,
        "nvidia.com/gpualloc": _COUNT,
        "nvidia.com/gpumem": _MIB,
        "nvidia.com/gpumem-percentage": _PERCENT,
        "nvidia.com/gpucores": _PERCENT,
        "nvidia.com/priority": ("0", "1", "2"),
    },
    "volcano": {
        "volcano.sh/vgpu-number": _COUNT,
        "volcano.sh/vgpu-memory": _MIB,
        "volcano.sh/vgpu-memory-percentage": _PERCENT,
        "volcano.sh/vgpu-cores": _PERCENT,
    },
    "alibaba": {
        "aliyun.com/gpu-mem": _GIB,
        "aliyun.com/gpu-core.percentage": _PERCENT,
        "aliyun.com/gpu": _COUNT,
    },
    "qgpu": {
        "tke.cloud.tencent.com/qgpu-core": _PERCENT,
        "tke.cloud.tencent.com/qgpu-memory": _GIB,
        "tke.cloud.tencent.com/qgpu-core-greedy": _PERCENT,
    },
    "vcuda": {"tencent.com/vcuda-core": _PERCENT, "tencent.com/vcuda-memory": _GIB},
    "elasticgpu": {
        "elasticgpu.io/gpu-core": _PERCENT,
        "elasticgpu.io/gpu-memory": _GIB,
        "elasticgpu.com/gpu-core": _PERCENT,
    },
    "mgpu": {"vke.volcengine.com/mgpu-core": _PERCENT, "vke.volcengine.com/mgpu-memory": _MIB},
    "huawei": {
        "volcano.sh/gpu-mem.128Mi": ("8", "32", "0", "x"),
        "volcano.sh/gpu-core.percentage": _PERCENT,
    },
    "baidu": {
        "baidu.com/v100_cgpu": _COUNT,
        "baidu.com/v100_cgpu_core": _PERCENT,
        "baidu.com/v100_cgpu_memory": _GIB,
        "baidu.com/v100_cgpu_memory_percent": _PERCENT,
    },
    "koordinator": {
        "koordinator.sh/gpu.shared": _COUNT,
        "koordinator.sh/gpu-core": _PERCENT,
        "koordinator.sh/gpu-memory": ("4Gi", "8Gi", "x"),
        "koordinator.sh/gpu-memory-ratio": _PERCENT,
        "koordinator.sh/gpu": _PERCENT,
    },
    "nvshare": {"nvshare.com/gpu": _COUNT},
    "orionx": {"virtaitech.com/gpu": _COUNT},
}
LABELS: Final[Table] = {
    "alibaba": {"aliyun.com/gpu-count": _COUNT},
    "huawei": {"volcano.sh/gpu-num": _COUNT},
    "koordinator": {"koordinator.sh/gpu-isolation-provider": ("HAMi-core", "x")},
    "kubeshare": {"sharedgpu/gpu_request": _FRACTION, "sharedgpu/gpu_mem": ("4294967296", "x")},
}

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
