# SPDX-License-Identifier: Apache-2.0
"""Cloud platforms with few keys: AWS ECS, Google GKE, Baidu CCE."""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    CARDS,
    CARDS_OR_ALL,
    CLIENTS,
    GIBS,
    MIBS,
    PERCENT_CAP,
    PERCENT_OR_CARDS,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    limit,
    needs,
    node_label,
    not_both,
    plugin,
    step_each,
    task,
)
from gpushare.quota.node_settings import APPLIED, POLICY

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
