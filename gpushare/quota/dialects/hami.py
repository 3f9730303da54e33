# SPDX-License-Identifier: Apache-2.0
"""HAMi: what users write, and what its device plugin hands to the container.

Source: HAMi 2.10 (pkg/device/nvidia, pkg/util/types.go), HAMi-core (src/include, multiprocess).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Assumed, Dialect, Row
from gpushare.quota.dialects.rules import NotBoth
from gpushare.quota.dialects.units import (
    BINARY_SIZE,
    CARDS,
    MIBS_OR_ALL,
    NAMES,
    PERCENT_OR_ANY,
    TEXT,
    VISIBLE,
    choice,
    first_of,
)

_POLICY: Final = choice(
    "force, default or disable",
    {
        "force": "fixed-share",
        "default": "burst-share",
        "disable": "best-effort",
        "FORCE": "fixed-share",
        "DEFAULT": "burst-share",
        "DISABLE": "best-effort",
    },
)
# 0 is what everybody has there: it is not to come before who says nothing here.
_PRIORITY: Final = choice("0 high or 1 low", {"0": None, "1": "6"})
# mutex is a card with nobody else on it: cores 100.
_PLACEMENT: Final = first_of(
    "binpack, spread, topology-aware, mutex, numa, or several of them",
    {
        "binpack": "binpack",
        "spread": "spread",
        "topology-aware": "topology",
        "mutex": None,
        "numa": "topology",
    },
)
_MODE: Final = choice(
    "hami-core, mig or mps", {"hami-core": "interposer", "mig": "mig", "mps": "mps"}
)

_LIMITS: Final = (
    Row("nvidia.com/gpu", "limit", "says", "Physical cards, each shared.", CARDS, "count"),
    Row(
        "nvidia.com/gpumem",
        "limit",
        "asks",
        "Memory of each card, times the plugin's memoryFactor; 0 is all of it.",
        MIBS_OR_ALL,
        "memory",
    ),
    Row(
        "nvidia.com/gpumem-percentage",
        "limit",
        "asks",
        "Memory of each card, of what it has; not beside nvidia.com/gpumem.",
        PERCENT_OR_ANY,
        "memory-percent",
    ),
    Row(
        "nvidia.com/gpucores",
        "limit",
        "asks",
        "Compute of each card; 100 is a whole one, 0 any.",
        PERCENT_OR_ANY,
        "cores",
    ),
    Row("nvidia.com/priority", "limit", "says", "0 high, 1 low.", _PRIORITY, "priority"),
)

_ANNOTATIONS: Final = (
    Row("nvidia.com/use-gputype", "annotation", "says", "Only these models.", NAMES, "allow"),
    Row("nvidia.com/nouse-gputype", "annotation", "says", "Not these models.", NAMES, "deny"),
    Row("nvidia.com/use-gpuuuid", "annotation", "says", "Only these cards.", NAMES, "allow"),
    Row("nvidia.com/nouse-gpuuuid", "annotation", "says", "Not these cards.", NAMES, "deny"),
    Row(
        "nvidia.com/numa-bind",
        "annotation",
        "says",
        "Cards of one NUMA node.",
        choice("true or false", {"true": "topology", "false": None}),
        "placement",
    ),
    Row("nvidia.com/vgpu-mode", "annotation", "says", "What divides a card.", _MODE, "backend"),
    Row(
        "hami.io/gpu-scheduler-policy",
        "annotation",
        "says",
        "Which of the node's cards; mutex, one with nobody else on it, is cores 100 here.",
        _PLACEMENT,
        "placement",
        instead="nothing: a card with nobody else on it is gpushare.io/cores=100",
    ),
    Row(
        "hami.io/node-scheduler-policy",
        "annotation",
        "says",
        "Which node: binpack or spread.",
        TEXT,
        instead="the cluster's scheduler: gpushare places on the cards of one node",
    ),
    Row(
        "hami.io/device-scoring-weights",
        "annotation",
        "says",
        "What counts how much when cards are compared: slot=1,core=1,memory=3.",
        TEXT,
        instead="gpushare.io/placement: cards are compared by memory",
    ),
)

_ENV: Final = (
    Row(
        "CUDA_DEVICE_MEMORY_LIMIT",
        "env",
        "asks",
        "Memory of each card; 0 is no limit.",
        BINARY_SIZE,
        "memory",
    ),
    Row(
        "CUDA_DEVICE_MEMORY_LIMIT_{card}",
        "env",
        "asks",
        "Memory of one card.",
        BINARY_SIZE,
        "memory",
    ),
    Row(
        "CUDA_DEVICE_SM_LIMIT",
        "env",
        "asks",
        "Compute of each card; 100 is a whole one, 0 any.",
        PERCENT_OR_ANY,
        "cores",
    ),
    Row(
        "CUDA_DEVICE_SM_LIMIT_{card}",
        "env",
        "asks",
        "Compute of one card.",
        PERCENT_OR_ANY,
        "cores",
    ),
    Row(
        "NVIDIA_VISIBLE_DEVICES",
        "env",
        "says",
        "The cards that HAMi's scheduler chose.",
        VISIBLE,
        "devices",
    ),
    Row(
        "GPU_CORE_UTILIZATION_POLICY",
        "env",
        "says",
        "Whether compute is held: force always, default beside others, disable never.",
        _POLICY,
        "policy",
    ),
    Row("CUDA_TASK_PRIORITY", "env", "says", "0 high, 1 low.", _PRIORITY, "priority"),
    Row(
        "CUDA_OVERSUBSCRIBE",
        "env",
        "kept",
        "true where the plugin promises more memory than cards have; HAMi-core does not read it.",
        TEXT,
        instead="nothing: a card's memory is promised once",
    ),
    Row(
        "CUDA_DISABLE_CONTROL",
        "env",
        "says",
        "true switches HAMi-core off.",
        TEXT,
        instead="nothing: a quota beside it holds, and no container switches its own off",
    ),
    Row(
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "env",
        "kept",
        "The file in which HAMi-core counts.",
        TEXT,
        instead="nothing: gpushare counts in pages of its own",
    ),
    Row(
        "LIBCUDA_LOG_LEVEL",
        "env",
        "kept",
        "What HAMi-core says: 0 errors to 4 everything.",
        TEXT,
        instead="GPUSHARE_LOG",
    ),
    Row(
        "ACTIVE_OOM_KILLER",
        "env",
        "kept",
        "Whether HAMi-core ends who has more than it may.",
        TEXT,
        instead="audit.over",
    ),
    Row(
        "RECORD_KERNEL_INTERVAL",
        "env",
        "kept",
        "How often HAMi-core notes that a kernel ran.",
        TEXT,
        instead="nothing: what runs is measured by events",
    ),
    Row(
        "CUDA_REDIRECT",
        "env",
        "kept",
        "Whether HAMi-core's log goes to a file.",
        TEXT,
        instead="GPUSHARE_LOG",
    ),
)

_BOOKS: Final = (
    *(
        Row(name, "annotation", "kept", meaning, TEXT, instead="gpushare ps, gpushare inspect")
        for name, meaning in (
            ("hami.io/vgpu-node", "The node that the scheduler chose."),
            ("hami.io/vgpu-time", "When it chose."),
            ("hami.io/bind-time", "When the pod was bound."),
            ("hami.io/bind-phase", "allocating, failed or success."),
            ("hami.io/vgpu-devices-to-allocate", "The parts that the plugin has yet to hand out."),
            ("hami.io/vgpu-devices-allocated", "The parts that it has handed out."),
        )
    ),
    *(
        Row(name, "node annotation", "kept", meaning, TEXT, instead="gpushare ls")
        for name, meaning in (
            ("hami.io/node-nvidia-register", "The node's cards, for the scheduler."),
            ("hami.io/node-nvidia-score", "How near they are to each other."),
            ("hami.io/node-handshake", "That the plugin is alive."),
            ("hami.io/mutex.lock", "Who is placing a pod on the node."),
        )
    ),
    Row(
        "hami.io/device-cordon",
        "node annotation",
        "node",
        "Cards, by UUID, on which nothing new is placed.",
        NAMES,
        instead="gpushare card cordon",
    ),
)

HAMI: Final = Dialect(
    "hami",
    "HAMi",
    rows=(*_LIMITS, *_ANNOTATIONS, *_ENV, *_BOOKS),
    rules=(NotBoth("memory-percent", "memory", "keep one of the two"),),
    assumed=(
        Assumed(
            "memory-percent", "100", ("memory",), "HAMi's defaultMemory where no memory is asked"
        ),
    ),
    translated_by="HAMi's device plugin, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
    domains=("nvidia.com/gpu", "hami.io/"),
    notes=(
        "Memory and compute are of each card: two cards of 4 GiB are 8 GiB.",
        "CUDA_DEVICE_SM_LIMIT comes from the first card's compute where the plugin writes it.",
    ),
)
