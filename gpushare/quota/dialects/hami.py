# SPDX-License-Identifier: Apache-2.0
"""HAMi: what users write, and what its device plugin hands to the container.

Source: HAMi 2.10 (pkg/device/nvidia, pkg/util/types.go), HAMi-core (src/include, multiprocess).
HAMI_DRA, its driver of dynamic resource allocation: Project-HAMi/k8s-dra-driver (DeviceClass and
ResourceSlices).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    BINARY_SIZE,
    CAPABILITIES,
    CARDS,
    CARDS_OR_ALL,
    MIBS_OR_ALL,
    NAMES,
    PERCENT_OR_ANY,
    QUANTITY,
    VISIBLE,
    choice,
    first_of,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    annotation,
    claim,
    env,
    limit,
    node_annotation,
    not_both,
)
from gpushare.quota.node_settings import APPLIED, CORDONED

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
# 0 is the default there: it does not precede a container without a priority here.
_PRIORITY: Final = choice("0 high or 1 low", {"0": None, "1": "6"})
# mutex is a card without other tenants: cores 100.
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
    limit.option("nvidia.com/gpu", "Physical cards, each shared.", CARDS, "count"),
    limit.request(
        "nvidia.com/gpualloc",
        "Physical cards, each shared, in Alauda's build of HAMi.",
        CARDS,
        "count",
        source="docs.alauda.io hami/2.8, Use HAMi vGPU ResourceQuota",
    ),
    limit.request(
        "nvidia.com/gpumem",
        "Memory of each card, times the plugin's memoryFactor; 0 is all of it.",
        MIBS_OR_ALL,
        "memory",
    ),
    limit.request(
        "nvidia.com/gpumem-percentage",
        "Memory of each card, in percent; not with nvidia.com/gpumem.",
        PERCENT_OR_ANY,
        "memory-percent",
    ),
    limit.request(
        "nvidia.com/gpucores",
        "Compute of each card; 100 is a whole one, 0 any.",
        PERCENT_OR_ANY,
        "cores",
    ),
    limit.option("nvidia.com/priority", "0 high, 1 low.", _PRIORITY, "priority"),
)

_ANNOTATIONS: Final = (
    annotation.option("nvidia.com/use-gputype", "Only these models.", NAMES, "allow"),
    annotation.option("nvidia.com/nouse-gputype", "Not these models.", NAMES, "deny"),
    annotation.option("nvidia.com/use-gpuuuid", "Only these cards.", NAMES, "allow"),
    annotation.option("nvidia.com/nouse-gpuuuid", "Not these cards.", NAMES, "deny"),
    annotation.option(
        "computeCapabilities",
        "Only cards with these compute capabilities, as Alauda's documents write them.",
        CAPABILITIES,
        "compute-capability",
        source="docs.alauda.io, which name neither a domain nor where it is written",
    ),
    annotation.option(
        "nvidia.com/numa-bind",
        "Cards of one NUMA node.",
        choice("true or false", {"true": "topology", "false": None}),
        "placement",
    ),
    annotation.option("nvidia.com/vgpu-mode", "Sharing backend.", _MODE, "backend"),
    annotation.option(
        "hami.io/gpu-scheduler-policy",
        "Card placement policy; mutex, a card without other containers, is cores 100 here.",
        _PLACEMENT,
        "placement",
        instead="nothing: for a card without other containers, use gpushare.io/cores=100",
    ),
    annotation.option(
        "hami.io/node-scheduler-policy",
        "Node placement policy: binpack or spread.",
        instead="the cluster's scheduler: gpushare places on the cards of one node",
    ),
    annotation.option(
        "hami.io/device-scoring-weights",
        "Weights for comparing cards: slot=1,core=1,memory=3.",
        instead="gpushare.io/placement: cards are compared by memory",
    ),
)

_ENV: Final = (
    env.request(
        "CUDA_DEVICE_MEMORY_LIMIT", "Memory of each card; 0 is no limit.", BINARY_SIZE, "memory"
    ),
    env.request("CUDA_DEVICE_MEMORY_LIMIT_{card}", "Memory of one card.", BINARY_SIZE, "memory"),
    env.request(
        "CUDA_DEVICE_SM_LIMIT",
        "Compute of each card; 100 is a whole one, 0 any.",
        PERCENT_OR_ANY,
        "cores",
    ),
    env.request("CUDA_DEVICE_SM_LIMIT_{card}", "Compute of one card.", PERCENT_OR_ANY, "cores"),
    env.option(
        "NVIDIA_VISIBLE_DEVICES", "The cards that HAMi's scheduler chose.", VISIBLE, "devices"
    ),
    env.option(
        "GPU_CORE_UTILIZATION_POLICY",
        "When compute is limited: force always, default if the card is shared, disable never.",
        _POLICY,
        "policy",
    ),
    env.option("CUDA_TASK_PRIORITY", "0 high, 1 low.", _PRIORITY, "priority"),
    env.record(
        "CUDA_OVERSUBSCRIBE",
        "true if the plugin overcommits memory; HAMi-core does not read it.",
        instead="nothing: gpushare does not overcommit a card's memory",
    ),
    env.option(
        "CUDA_DISABLE_CONTROL",
        "true disables HAMi-core.",
        instead="nothing: the quota stays in effect; a container cannot disable its own quota",
    ),
    env.record(
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "Accounting file of HAMi-core.",
        instead="nothing: gpushare has its own accounting",
    ),
    env.record(
        "LIBCUDA_LOG_LEVEL",
        "Log level of HAMi-core: 0 (errors) to 4 (everything).",
        instead="GPUSHARE_LOG",
    ),
    env.record(
        "ACTIVE_OOM_KILLER",
        "Whether HAMi-core kills processes that are over quota.",
        instead="audit.over_quota",
    ),
    env.record(
        "RECORD_KERNEL_INTERVAL",
        "Interval at which HAMi-core records kernel launches.",
        instead="nothing: gpushare measures launches with CUDA events",
    ),
    env.record("CUDA_REDIRECT", "Whether HAMi-core logs to a file.", instead="GPUSHARE_LOG"),
)

_BOOKS: Final = (
    *(
        annotation.record(name, meaning, instead="gpushare ps, gpushare inspect")
        for name, meaning in (
            ("hami.io/vgpu-node", "The node that the scheduler chose."),
            ("hami.io/vgpu-time", "When it chose."),
            ("hami.io/bind-time", "When the pod was bound."),
            ("hami.io/bind-phase", "allocating, failed or success."),
            ("hami.io/vgpu-devices-to-allocate", "Devices that the plugin has yet to allocate."),
            ("hami.io/vgpu-devices-allocated", "Devices that it has allocated."),
        )
    ),
    *(
        node_annotation.record(name, meaning, instead="gpushare ls")
        for name, meaning in (
            ("hami.io/node-nvidia-register", "The node's cards, for the scheduler."),
            ("hami.io/node-nvidia-score", "Topology scores of the node's cards."),
            ("hami.io/node-handshake", "Heartbeat of the plugin."),
            ("hami.io/mutex.lock", "Lock held while a pod is placed on the node."),
        )
    ),
    node_annotation.setting(
        "hami.io/device-cordon",
        "Cordoned cards, by UUID.",
        NAMES,
        setting=CORDONED,
        instead=f"{APPLIED} gpushare card cordon",
    ),
)

HAMI: Final = Dialect(
    "hami",
    "HAMi",
    rows=(*_LIMITS, *_ANNOTATIONS, *_ENV, *_BOOKS),
    rules=(not_both("memory-percent", "memory", "keep one of the two"),),
    assumed=(
        ImpliedValue(
            "memory-percent", "100", ("memory",), "HAMi's defaultMemory if no memory is requested"
        ),
    ),
    translated_by="HAMi's device plugin, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
    domains=("nvidia.com/gpu", "hami.io/"),
    notes=(
        "Memory and compute are of each card: two cards of 4 GiB are 8 GiB.",
        "The plugin sets CUDA_DEVICE_SM_LIMIT from the first card's compute.",
    ),
)

_CLASS: Final = "hami-core-gpu.project-hami.io"
HAMI_DRA: Final = Dialect(
    "hami-dra",
    "HAMi DRA",
    rows=(
        claim.request(_CLASS, "Cards of a claim.", CARDS_OR_ALL, "count"),
        claim.option(
            "capacity.requests.cores",
            "Compute of each card, 0 to 100; 0 is any.",
            PERCENT_OR_ANY,
            "cores",
        ),
        claim.option(
            "capacity.requests.memory", "Memory of each card, in whole MiB.", QUANTITY, "memory"
        ),
        claim.record("allowMultipleAllocations", "Whether several claims may share a card."),
    ),
    translated_by="HAMi's DRA driver, to CUDA_DEVICE_MEMORY_LIMIT_<card>",
)
