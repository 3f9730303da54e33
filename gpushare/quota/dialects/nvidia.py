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

from gpushare.quota.dialects.units import (
    ACCESS,
    CARDS_OR_ALL,
    MIBS,
    MIG_INSTANCES,
    PERCENT,
    PERCENT_CAP,
    PINNED_BY_CARD,
    QUANTITY,
    VISIBLE,
    WHOLE_CARDS,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    ImpliedValue,
    claim,
    env,
    limit,
    node_label,
    not_above,
    plugin,
)

_TOOLKIT: Final = (
    env.option(
        "NVIDIA_VISIBLE_DEVICES",
        "Cards to use: indices or UUIDs; all, none and void select no particular card.",
        VISIBLE,
        "devices",
    ),
    env.option(
        "NVIDIA_DRIVER_CAPABILITIES",
        "Driver capabilities to mount.",
        instead="gpushare reads it to select driver files (for a share: compute and utility)",
    ),
    env.option(
        "NVIDIA_REQUIRE_{any}",
        "Driver, CUDA version and cards that the image requires.",
        instead="gpushare compat reads it",
    ),
    env.option(
        "NVIDIA_DISABLE_REQUIRE",
        "Disables NVIDIA_REQUIRE_: true or 1.",
        instead="gpushare compat reads it",
    ),
    *(
        env.option(name, meaning, instead="passed on; nothing is mounted for it")
        for name, meaning in (
            ("NVIDIA_MIG_CONFIG_DEVICES", "Cards whose MIG devices it may configure."),
            ("NVIDIA_MIG_MONITOR_DEVICES", "Cards whose MIG devices it may monitor."),
            ("NVIDIA_IMEX_CHANNELS", "Memory channels between nodes."),
            ("NVIDIA_GDS", "GPUDirect Storage: enabled."),
            ("NVIDIA_MOFED", "Mellanox OFED network driver: enabled."),
            ("NVIDIA_NVSWITCH", "NVSwitch: enabled."),
            ("NVIDIA_GDRCOPY", "GDRCopy (card memory mapped for the CPU): enabled."),
        )
    ),
    env.request("NVIDIA_GPU_MEMORY_REQUEST", "Guaranteed memory of each card.", MIBS, "memory"),
    env.request("NVIDIA_GPU_MEMORY_LIMIT", "Memory limit of each card.", MIBS, "memory-limit"),
)

_MPS: Final = (
    env.request(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "Memory limit of each card: 0=1G,1=512M.",
        PINNED_BY_CARD,
        "memory",
    ),
    env.option(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "Percent of a card's multiprocessors that it may use; 100 is no limit.",
        PERCENT_CAP,
        "cores",
    ),
    env.option(
        "CUDA_MPS_CLIENT_PRIORITY",
        "0 normal, 1 below normal.",
        choice("0 or 1", {"0": None, "1": "6"}),
        "priority",
    ),
    env.option(
        "CUDA_MPS_PIPE_DIRECTORY",
        "Socket directory of the MPS daemon.",
        instead="passed on; on a card in MPS mode, gpushare sets it",
    ),
    env.option(
        "CUDA_MPS_LOG_DIRECTORY",
        "Log directory of the MPS daemon.",
        instead="passed on; gpushare keeps the logs of a card in MPS mode",
    ),
    env.option(
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
        "1: each context of a process has its own percentage.",
        instead="passed on; gpushare shares between containers",
    ),
    env.option(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "Queues between a program and the card.",
        instead="passed on to the driver",
    ),
)

_PLUGIN: Final = (
    limit.request("nvidia.com/gpu", "Whole cards.", WHOLE_CARDS, "count"),
    limit.request(
        "nvidia.com/gpu.shared",
        "Time slices on a shared card, without a part of its memory.",
        ACCESS,
        "policy",
    ),
    limit.request(
        "nvidia.com/mps-core",
        "Percent of a card's compute, through MPS: gpushare.io/backend=mps is requested too.",
        PERCENT,
        "cores",
        backend="mps",
        source="Alauda's device plugin for MPS",
    ),
    limit.request(
        "nvidia.com/mig-{profile}",
        "MIG devices of a profile, with the strategy mixed: nvidia.com/mig-1g.10gb, "
        "nvidia.com/mig-1g.10gb.me.",
        MIG_INSTANCES,
        "count",
        beside=(("backend", "mig"), ("allow", "MIG {profile}")),
    ),
    limit.request(
        "nvidia.com/mig-{compute}",
        "MIG devices with a part of an instance's compute, 1c.3g.40gb. NVIDIA's device plugin does "
        "not offer them.",
        instead="gpushare.io/devices with the instance's UUID (gpushare ls)",
    ),
    node_label.record(
        "nvidia.com/gpu.sharing-strategy",
        "Sharing strategy of the plugin: none, mps or time-slicing.",
    ),
    node_label.record("nvidia.com/mps.capable", "Whether MPS runs on the node."),
    node_label.setting(
        "nvidia.com/device-plugin.config",
        "Configuration of the plugin to use.",
        instead="gpushare.yaml of that node",
    ),
    *(
        plugin.setting(f"sharing.{way}.{name}", meaning, instead=instead)
        for way in ("timeSlicing", "mps")
        for name, meaning, instead in (
            (
                "renameByDefault",
                "Rename shared resources to nvidia.com/gpu.shared.",
                "not needed: see cards",
            ),
            (
                "failRequestsGreaterThanOne",
                "Refuse requests for more than one, which would not be a larger share.",
                "max_per_request.count of gpushare.yaml",
            ),
            ("resources.name", "Resource to share.", "cards of gpushare.yaml"),
            ("resources.rename", "Name of the shared resource.", "not needed: see cards"),
            (
                "resources.replicas",
                "Number of containers on a card; under MPS each has an equal part.",
                "max_tenants and defaults.memory of gpushare.yaml",
            ),
        )
    ),
)

_CLAIM: Final = (
    claim.request("gpu.nvidia.com", "Whole cards of a claim.", CARDS_OR_ALL, "count"),
    claim.option(
        "sharing.strategy",
        "TimeSlicing, or MPS.",
        instead="gpushare.io/policy: best-effort shares by time; gpushare.io/backend: mps, a card "
        "in MPS mode",
    ),
    claim.option(
        "sharing.timeSlicingConfig.interval",
        "Default, Short, Medium or Long time slices.",
        instead="nothing: the scheduler chooses the length of a time slice",
    ),
    claim.option(
        "sharing.mpsConfig.defaultActiveThreadPercentage",
        "Percent of a card's multiprocessors for each client.",
        PERCENT_CAP,
        "cores",
    ),
    claim.request(
        "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit",
        "Memory of each card for each client.",
        QUANTITY,
        "memory",
    ),
    claim.option(
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.{any}",
        "The same for one card, by its index or UUID.",
        QUANTITY,
        instead="gpushare.io/memory, the same on each card",
    ),
    claim.record("extendedResourceName", "Resource limit by which pods may request the class."),
)

NVIDIA: Final = Dialect(
    "nvidia",
    "NVIDIA",
    rows=(*_TOOLKIT, *_MPS, *_PLUGIN, *_CLAIM),
    rules=(not_above("memory", "memory-limit"),),
    assumed=(
        ImpliedValue(
            "memory",
            like="memory-limit",
            without=("memory-percent",),
            why="a limit without a request is also the request",
        ),
    ),
    translated_by="NVIDIA's device plugin, to NVIDIA_VISIBLE_DEVICES or a CDI device: whole cards",
    claims_by="NVIDIA's DRA driver, to a CDI device and, for MPS, to CUDA_MPS_ variables",
    domains=("NVIDIA_GPU_MEMORY_",),
    notes=(
        "Images set NVIDIA_VISIBLE_DEVICES themselves, so it alone requests no GPU.",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE alone requests nothing: it is only a limit.",
        "With time slicing, nvidia.com/gpu is time on a card, without a part of its memory.",
        "NVIDIA's device plugin offers nvidia.com/mig-1g.10gb with the MIG strategy mixed.",
        "With the strategy single, each MIG instance is an nvidia.com/gpu; with none, each card.",
        "A container may be allocated several MIG devices, and its programs use only the first.",
        "1G of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is binary, 1G of a claim decimal.",
    ),
)
