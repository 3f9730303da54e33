# SPDX-License-Identifier: Apache-2.0
"""What each vendor's words come to: the canonical request, or why they are refused."""

from __future__ import annotations

from typing import Final, TypeAlias

import pytest

from gpushare.quota.dialects import DIALECTS, DialectRequest, Tables, combine
from gpushare.quota.dialects.vendor_key import LOCATIONS

Words: TypeAlias = "dict[str, str]"
Expected: TypeAlias = "dict[str, str] | str"

KAI: Final = "nvidia.com/container.main."
LENT: Final = "gpu-memory"
XGPU: Final = "volcano.sh/gpu-mem.128Mi"
XGPU_CORE: Final = "volcano.sh/gpu-core.percentage"
CGPU: Final = "baidu.com/a10_24g_cgpu"
KOORD: Final = "koordinator.sh/gpu"
DRA: Final = "hami-core-gpu.project-hami.io"
DRA_CORES: Final = "capacity.requests.cores"
DRA_MEMORY: Final = "capacity.requests.memory"
PINNED: Final = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"
THREADS: Final = "sharing.mpsConfig.defaultActiveThreadPercentage"

#: Under strict rules; a text is part of the refusal.
SAID: Final[tuple[tuple[str, Words, Expected], ...]] = (
    # The toolkit: whole MiB of each card, a request up to a limit.
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "2048", "NVIDIA_GPU_MEMORY_LIMIT": "4096"},
        {"memory": "2GiB", "memory-limit": "4GiB"},
    ),
    ("nvidia", {"NVIDIA_GPU_MEMORY_REQUEST": "4096"}, {"memory": "4GiB"}),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_LIMIT": "4096"},
        {"memory": "4GiB", "memory-limit": "4GiB"},
    ),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_GPU_MEMORY_LIMIT": "2048"},
        "NVIDIA_GPU_MEMORY_REQUEST=4096 (NVIDIA): exceeds the limit, 2GiB. Request 2GiB or less.",
    ),
    ("nvidia", {"NVIDIA_GPU_MEMORY_LIMIT": "4Gi"}, "not a whole number of MiB"),
    ("nvidia", {"NVIDIA_GPU_MEMORY_LIMIT": "0.5"}, "not a whole number of MiB"),
    ("nvidia", {"NVIDIA_GPU_MEMORY_LIMIT": "0"}, "must be greater than zero"),
    # Which cards: beside a request, and never because an image says all.
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "0, 2"},
        {"memory": "4GiB", "devices": "0,2"},
    ),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "all"},
        {"memory": "4GiB"},
    ),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "void"},
        {"memory": "4GiB"},
    ),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=GPU-4f1c"},
        {"memory": "4GiB", "devices": "GPU-4f1c"},
    ),
    (
        "nvidia",
        {
            "NVIDIA_GPU_MEMORY_REQUEST": "4096",
            "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices",
        },
        {"memory": "4GiB"},
    ),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "0:1"},
        {"memory": "4GiB", "devices": "0:1"},
    ),
    (
        "nvidia",
        {"NVIDIA_GPU_MEMORY_REQUEST": "4096", "NVIDIA_VISIBLE_DEVICES": "0:a"},
        "not a list of cards",
    ),
    ("nvidia", {"NVIDIA_VISIBLE_DEVICES": "all"}, {}),
    ("nvidia", {"NVIDIA_VISIBLE_DEVICES": "0,1"}, {}),
    ("nvidia", {"NVIDIA_VISIBLE_DEVICES": "nonsense"}, {}),
    ("nvidia", {"NVIDIA_VISIBLE_DEVICES": ""}, {}),
    # What only says how, or is for another part.
    ("nvidia", {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, {}),
    ("nvidia", {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4 brand=tesla,driver>=470"}, {}),
    ("nvidia", {"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}, {}),
    ("nvidia", {"NVIDIA_DISABLE_REQUIRE": "1"}, {}),
    ("nvidia", {"NVIDIA_MIG_CONFIG_DEVICES": "all", "NVIDIA_MIG_MONITOR_DEVICES": "all"}, {}),
    ("nvidia", {"NVIDIA_IMEX_CHANNELS": "0", "NVIDIA_GDS": "enabled"}, {}),
    ("nvidia", {"NVIDIA_MOFED": "enabled", "NVIDIA_NVSWITCH": "enabled"}, {}),
    ("nvidia", {"NVIDIA_GDRCOPY": "enabled"}, {}),
    # MPS: a bound of memory asks, a bound of compute does not.
    ("nvidia", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, {"memory": "1GiB"}),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=1024MB"},
        {"memory": "1GiB", "count": "2"},
    ),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=512MB"},
        "=0=1G,1=512MB (NVIDIA): differs between cards",
    ),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"},
        {"memory": "4GiB", "cores": "30"},
    ),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"},
        {"memory": "4GiB"},
    ),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5"},
        {"memory": "4GiB", "cores": "12"},
    ),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "120"},
        "not percent of a card",
    ),
    ("nvidia", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}, {}),
    ("nvidia", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "4G"}, "not a size for each card"),
    ("nvidia", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4"}, "not a size for each card"),
    ("nvidia", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=0G"}, "not a memory size"),
    ("nvidia", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,0=2G"}, "two sizes for one card"),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G", "CUDA_MPS_CLIENT_PRIORITY": "1"},
        {"memory": "4GiB", "priority": "6"},
    ),
    (
        "nvidia",
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G", "CUDA_MPS_CLIENT_PRIORITY": "0"},
        {"memory": "4GiB"},
    ),
    (
        "nvidia",
        {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G",
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
            "CUDA_MPS_LOG_DIRECTORY": "/tmp/nvidia-log",
            "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        },
        {"memory": "4GiB"},
    ),
    # The device plugin: whole cards, or a turn on one.
    ("nvidia", {"nvidia.com/gpu": "2"}, {"count": "2"}),
    ("nvidia", {"nvidia.com/gpu": "0"}, {}),
    ("nvidia", {"nvidia.com/gpu": "1.5"}, "not a number of cards"),
    ("nvidia", {"nvidia.com/gpu": "one"}, "not a number of cards"),
    ("nvidia", {"nvidia.com/gpu.shared": "1"}, {"policy": "best-effort"}),
    ("nvidia", {"nvidia.com/gpu.shared": "4"}, {"policy": "best-effort"}),
    # A MIG instance, whole; with a plus sign in NVIDIA's tools, a dot in the resource.
    (
        "nvidia",
        {"nvidia.com/mig-1g.5gb": "1"},
        {"count": "1", "backend": "mig", "allow": "MIG 1g.5gb"},
    ),
    (
        "nvidia",
        {"nvidia.com/mig-1g.10gb.me": "1"},
        {"count": "1", "backend": "mig", "allow": "MIG 1g.10gb+me"},
    ),
    ("nvidia", {"nvidia.com/mig-3g.71gb": "0"}, {}),
    ("nvidia", {"nvidia.com/mig-1g.5gb": "2"}, "a program can use only one"),
    ("nvidia", {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/gpu": "1"}, "can use nothing else"),
    (
        "nvidia",
        {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "1"},
        "beside nvidia.com/mig-1g.5gb",
    ),
    (
        "nvidia",
        {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/gpu": "0"},
        {"count": "1", "backend": "mig", "allow": "MIG 1g.5gb"},
    ),
    ("nvidia", {"nvidia.com/mig-1c.3g.20gb": "1"}, {}),
    ("nvidia", {"nvidia.com/mps-core": "30"}, {"cores": "30", "backend": "mps"}),
    ("nvidia", {"sharing.timeSlicing.resources.replicas": "4"}, {}),
    ("nvidia", {"sharing.timeSlicing.renameByDefault": "true"}, {}),
    ("nvidia", {"sharing.timeSlicing.failRequestsGreaterThanOne": "true"}, {}),
    ("nvidia", {"sharing.timeSlicing.resources.name": "nvidia.com/gpu"}, {}),
    ("nvidia", {"sharing.timeSlicing.resources.rename": "nvidia.com/gpu.turn"}, {}),
    ("nvidia", {"sharing.mps.resources.replicas": "4", "sharing.mps.renameByDefault": "true"}, {}),
    ("nvidia", {"sharing.mps.resources.name": "nvidia.com/gpu"}, {}),
    ("nvidia", {"sharing.mps.resources.rename": "nvidia.com/gpu.part"}, {}),
    ("nvidia", {"sharing.mps.failRequestsGreaterThanOne": "true"}, {}),
    ("nvidia", {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/mps.capable": "true"}, {}),
    ("nvidia", {"nvidia.com/device-plugin.config": "tesla"}, {}),
    # Claims.
    ("nvidia", {"gpu.nvidia.com": "1"}, {"count": "1"}),
    ("nvidia", {"sharing.strategy": "TimeSlicing"}, {}),
    (
        "nvidia",
        {"gpu.nvidia.com": "2", "sharing.strategy": "MPS", PINNED: "10Gi", THREADS: "50"},
        {"count": "2", "memory": "10GiB", "cores": "50"},
    ),
    ("nvidia", {PINNED: "1G"}, {"memory": "1000000000B"}),
    ("nvidia", {"sharing.timeSlicingConfig.interval": "Long"}, {}),
    (
        "nvidia",
        {"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0": "4Gi"},
        {},
    ),
    ("nvidia", {"extendedResourceName": "nvidia.com/gpu"}, {}),
    ("hami-dra", {"allowMultipleAllocations": "true"}, {}),
    ("nvidia", {"gpu.nvidia.com": "all"}, "means every card of the node"),
    (
        "hami-dra",
        {DRA: "2", DRA_CORES: "60", DRA_MEMORY: "4Gi"},
        {"count": "2", "cores": "60", "memory": "4GiB"},
    ),
    (
        "hami-dra",
        {DRA: "1", DRA_CORES: "0", DRA_MEMORY: "8M"},
        {"count": "1", "memory": "8000000B"},
    ),
    ("hami-dra", {DRA: "1", DRA_CORES: "101"}, "not percent of a card"),
    ("hami-dra", {DRA_CORES: "60", DRA_MEMORY: "4Gi"}, {}),
    # KAI and Run:ai: one of request and limit is the other too.
    (
        "kai",
        {f"{KAI}gpu-memory.request": "4Gi", f"{KAI}gpu-memory.limit": "8Gi"},
        {"memory": "4GiB", "memory-limit": "8GiB"},
    ),
    ("kai", {f"{KAI}gpu-memory.request": "4Gi"}, {"memory": "4GiB"}),
    ("kai", {f"{KAI}gpu-memory.limit": "4Gi"}, {"memory": "4GiB", "memory-limit": "4GiB"}),
    (
        "kai",
        {
            f"{KAI}gpu-memory.request": "4Gi",
            "NVIDIA_GPU_MEMORY_REQUEST": "4096",
            "NVIDIA_GPU_MEMORY_LIMIT": "8192",
        },
        {"memory": "4GiB", "memory-limit": "8GiB"},
    ),
    ("kai", {f"{KAI}gpu-memory.request": "1G"}, {"memory": "1000000000B"}),
    ("kai", {f"{KAI}gpu-memory.request": "1000"}, "below 1000000B"),
    ("kai", {f"{KAI}gpu-memory.request": "some"}, "not a quantity"),
    (
        "kai",
        {f"{KAI}gpu-memory.request": "8Gi", f"{KAI}gpu-memory.limit": "4Gi"},
        "exceeds the limit, 4GiB",
    ),
    (
        "kai",
        {f"{KAI}gpu-memory.request": "4Gi", f"{KAI}gpu-compute.mode": "sm-sharing"},
        {"memory": "4GiB", "policy": "best-effort"},
    ),
    (
        "kai",
        {f"{KAI}gpu-memory.request": "4Gi", f"{KAI}gpu-compute.mode": "sm_sharing"},
        "Did you mean sm-sharing?",
    ),
    ("kai", {f"{KAI}gpu-compute.mode": "time-slicing"}, {}),
    (
        "kai",
        {f"{KAI}gpu-memory.request": "4Gi", f"{KAI}gpus.devices": "GPU-1,GPU-2"},
        {"memory": "4GiB", "devices": "GPU-1,GPU-2"},
    ),
    ("kai", {f"{KAI}gpus.devices": "GPU-1"}, {}),
    ("kai", {"gpu-fraction": "0.5"}, {"memory-percent": "50"}),
    ("kai", {"gpu-fraction": "0.125"}, {"memory-percent": "25/2"}),
    ("kai", {"gpu-fraction": "0.5", "gpu-fraction.limit": "0.9"}, {"memory-percent": "50"}),
    ("kai", {"gpu-fraction": "0.001"}, {"memory-percent": "1/10"}),
    ("kai", {"gpu-fraction": "1"}, "not above 0 and below 1"),
    ("kai", {"gpu-fraction": "0"}, "not above 0 and below 1"),
    ("kai", {"gpu-fraction": "NaN"}, "not a part of a card"),
    (
        "kai",
        {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
        {"memory-percent": "50", "count": "2"},
    ),
    ("kai", {"gpu-fraction-num-devices": "2"}, {}),
    ("kai", {LENT: "4096"}, {"memory": "4GiB"}),
    ("kai", {LENT: "4096", "gpu-memory.limit": "8Gi"}, {"memory": "4GiB", "memory-limit": "8GiB"}),
    ("kai", {LENT: "4Gi"}, "not a whole number of MiB"),
    ("kai", {LENT: "2048", "gpu-fraction": "0.5"}, "Keep gpu-memory or gpu-fraction"),
    ("kai", {LENT: "2048", "gpu-fraction-container-name": "main"}, {"memory": "2GiB"}),
    ("kai", {LENT: "2048", "RUNAI_GPU_MEMORY_LIMIT": "0.9"}, {"memory": "2GiB"}),
    (
        "kai",
        {LENT: "2048", "RUNAI_GPU_MEMORY_LIMIT": "4Gi"},
        {"memory": "2GiB", "memory-limit": "4GiB"},
    ),
    ("kai", {LENT: "2048", "RUNAI_GPU_MEMORY_LIMIT": "500M"}, "exceeds the limit, 500000000B"),
    ("kai", {"RUNAI_GPU_MEMORY_LIMIT": "4Gi"}, {}),
    (
        "kai",
        {"gpu-fraction": "0.5", "NVIDIA_VISIBLE_DEVICES": "GPU-1"},
        {"memory-percent": "50", "devices": "GPU-1"},
    ),
    # Huawei: 128 MiB, totals over the cards.
    ("huawei", {XGPU: "40"}, {"memory": "5GiB"}),
    ("huawei", {XGPU: "40", XGPU_CORE: "25"}, {"memory": "5GiB", "cores": "25"}),
    ("huawei", {XGPU: "64", "volcano.sh/gpu-num": "2"}, {"memory": "4GiB", "count": "2"}),
    (
        "huawei",
        {XGPU: "64", XGPU_CORE: "50", "volcano.sh/gpu-num": "2"},
        {"memory": "4GiB", "cores": "25", "count": "2"},
    ),
    ("huawei", {XGPU: "65", "volcano.sh/gpu-num": "2"}, "does not divide into 2 cards"),
    (
        "huawei",
        {XGPU: "64", XGPU_CORE: "30", "volcano.sh/gpu-num": "4"},
        "does not divide into 4 cards",
    ),
    (
        "huawei",
        {XGPU: "64", XGPU_CORE: "24", "volcano.sh/gpu-num": "2"},
        "12 on each card, which is not a multiple of 5",
    ),
    ("huawei", {XGPU: "40", XGPU_CORE: "7"}, "not a multiple of 5. Write e.g. 5."),
    ("huawei", {XGPU_CORE: "25"}, "requires memory. Add volcano.sh/gpu-mem.128Mi."),
    ("huawei", {"nvidia.com/gpu": "0.5"}, {"memory-percent": "50"}),
    ("huawei", {"nvidia.com/gpu": "1"}, {}),
    ("huawei", {"/proc/xgpu/0/policy": "1"}, {}),
    # Baidu: totals over the cards of a model.
    (
        "baidu",
        {CGPU: "2", f"{CGPU}_core": "50", f"{CGPU}_memory": "10"},
        {"count": "2", "cores": "25", "memory": "5GiB"},
    ),
    ("baidu", {CGPU: "1", f"{CGPU}_memory": "5"}, {"count": "1", "memory": "5GiB"}),
    ("baidu", {CGPU: "2", f"{CGPU}_memory_percent": "50"}, {"count": "2", "memory-percent": "25"}),
    ("baidu", {CGPU: "2"}, {"count": "2"}),
    ("baidu", {CGPU: "2", f"{CGPU}_memory": "5"}, "does not divide into 2 cards. Write 4 or 6."),
    (
        "baidu",
        {CGPU: "2", f"{CGPU}_core": "14", f"{CGPU}_memory": "10"},
        "7 on each card, which is not a multiple of 5",
    ),
    ("baidu", {CGPU: "1", f"{CGPU}_core": "50"}, "requires memory"),
    (
        "baidu",
        {CGPU: "1", f"{CGPU}_memory": "5", f"{CGPU}_memory_percent": "50"},
        "Keep one of the two",
    ),
    # Koordinator: totals over the cards that are shared.
    (
        "koordinator",
        {f"{KOORD}.shared": "2", f"{KOORD}-core": "100", f"{KOORD}-memory": "4Gi"},
        {"count": "2", "cores": "50", "memory": "2GiB"},
    ),
    (
        "koordinator",
        {f"{KOORD}.shared": "1", f"{KOORD}-core": "50", f"{KOORD}-memory-ratio": "50"},
        {"count": "1", "cores": "50", "memory-percent": "50"},
    ),
    ("koordinator", {f"{KOORD}-memory": "4294967296"}, {"memory": "4GiB"}),
    ("koordinator", {f"{KOORD}-memory-ratio": "200"}, {"count": "2", "memory-percent": "100"}),
    ("koordinator", {f"{KOORD}-memory-ratio": "150"}, "not a number of whole cards"),
    ("koordinator", {KOORD: "50"}, {"cores": "50", "memory-percent": "50"}),
    ("koordinator", {KOORD: "200"}, {"count": "2", "cores": "100", "memory-percent": "100"}),
    ("koordinator", {f"{KOORD}-core": "50"}, "requires memory"),
    (
        "koordinator",
        {f"{KOORD}-memory": "4Gi", f"{KOORD}-memory-ratio": "50"},
        "Keep gpu-memory or gpu-memory-ratio",
    ),
    ("koordinator", {f"{KOORD}.shared": "1"}, {}),
    ("koordinator", {f"{KOORD}-isolation-provider": "HAMi-core"}, {}),
    # KubeShare: parts of a card, bytes.
    (
        "kubeshare",
        {
            "kubeshare/gpu_request": "0.5",
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": "1073741824",
        },
        {"cores": "50", "memory": "1GiB"},
    ),
    (
        "kubeshare",
        {"sharedgpu/gpu_request": "0.3", "sharedgpu/gpu_mem": "4294967296"},
        {"cores": "30", "memory": "4GiB"},
    ),
    (
        "kubeshare",
        {
            "kubeshare/gpu_request": "0.5",
            "kubeshare/gpu_limit": "2",
            "kubeshare/gpu_mem": "1073741824",
        },
        "more than one card",
    ),
    ("kubeshare", {"kubeshare/gpu_request": "1.0"}, {"cores": "100"}),
    ("kubeshare", {"kubeshare/gpu_request": "1.5", "kubeshare/gpu_mem": "1"}, "more than one card"),
    ("kubeshare", {"kubeshare/gpu_request": "0.5"}, "requires memory"),
    ("kubeshare", {"kubeshare/gpu_mem": "1073741824"}, "requires cores"),
    ("kubeshare", {"kubeshare/gpu_limit": "0.5", "kubeshare/GPUID": "abcde"}, {}),
    ("kubeshare", {"sharedgpu/gpu_limit": "0.5", "sharedgpu/GPUID": "abcde"}, {}),
    # nvshare: turns.
    ("nvshare", {"nvshare.com/gpu": "1"}, {"policy": "best-effort"}),
    ("nvshare", {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1", "NVSHARE_DEBUG": "1"}, {}),
    # OrionX: of each vGPU.
    (
        "orionx",
        {"ORION_VGPU": "2", "ORION_GMEM": "4096", "ORION_RATIO": "30"},
        {"count": "2", "memory": "4GiB", "cores": "30"},
    ),
    ("orionx", {"ORION_GMEM": "4096", "ORION_RATIO": "100"}, {"memory": "4GiB"}),
    ("orionx", {"ORION_GMEM": "4g"}, "not a whole number of MiB"),
    ("orionx", {"virtaitech.com/gpu": "1", "ORION_GMEM": "1024"}, {"count": "1", "memory": "1GiB"}),
    ("orionx", {"ORION_RESERVED": "1", "ORION_CROSS_NODE": "0", "ORION_GROUP_ID": "x"}, {}),
    # AWS ECS.
    ("aws", {"resourceRequirements.GPU": "2"}, {"count": "2"}),
    ("aws", {"resourceRequirements.GPU": "ALL"}, "means every card of the node"),
    (
        "aws",
        {"nvidiaMps.memory": "4096", "nvidiaMps.maxComputePercent": "30"},
        {"memory": "4GiB", "cores": "30", "backend": "mps"},
    ),
    (
        "aws",
        {"nvidiaMps.memory": "4096", "nvidiaMps.maxComputePercent": "100"},
        {"memory": "4GiB", "backend": "mps"},
    ),
    ("aws", {"nvidiaMps.maxComputePercent": "30"}, {}),
    # GKE says of nodes alone.
    ("gke", {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, {}),
    ("gke", {"cloud.google.com/gke-max-shared-clients-per-gpu": "16"}, {}),
    ("gke", {"gpuSharingConfig.gpuSharingStrategy": "MPS"}, {}),
    ("gke", {"gpuSharingConfig.maxSharedClientsPerGpu": "3"}, {}),
)


def spoken(dialect: str, words: Words, *, strict: bool = True, **here: object) -> DialectRequest:
    """Return what `words` say in one dialect, each where its row is."""
    tables = Tables((DIALECTS[dialect],))
    found = [word for where in LOCATIONS for word in tables.find(where, words)]
    assert {word.name for word in found} == set(words), "a word that no row is for"
    [said] = combine(found, strict=strict, **here)  # type: ignore[arg-type]
    return said


def asked(said: DialectRequest) -> dict[str, str]:
    return {key: one.text for key, one in said.layer.items()}


def _id(case: tuple[str, Words, Expected]) -> str:
    dialect, words, _ = case
    return f"{dialect}: " + " ".join(f"{name}={text}" for name, text in words.items())


@pytest.mark.parametrize("case", SAID, ids=_id)
def test_a_vendors_values_have_their_meaning_or_are_refused(
    case: tuple[str, Words, Expected],
) -> None:
    dialect, words, expected = case
    said = spoken(dialect, words)
    refusals = [str(problem.error) for problem in said.problems]
    if isinstance(expected, dict):
        assert not refusals
        assert asked(said) == expected
    else:
        assert len(refusals) == 1
        assert expected in refusals[0]
        assert DIALECTS[dialect].title in refusals[0]


def test_every_key_of_these_vendors_is_listed_once_above() -> None:
    """A row that no case uses would be a row without a test."""
    mine = {dialect for dialect, _, _ in SAID}
    tried = {
        (dialect, word.row.name, word.row.where)
        for dialect, words, _ in SAID
        for where in LOCATIONS
        for word in Tables((DIALECTS[dialect],)).find(where, words)
    }
    rows = {(name, row.name, row.where) for name in mine for row in DIALECTS[name].rows}
    assert rows - tried == set()


def test_a_value_for_a_named_container_is_for_no_other() -> None:
    words = {f"{KAI}gpu-memory.request": "4Gi", "nvidia.com/container.side.gpu-memory.limit": "1Gi"}
    assert asked(spoken("kai", words, container="main")) == {"memory": "4GiB"}
    side = spoken("kai", words, container="side")
    assert asked(side) == {"memory": "1GiB", "memory-limit": "1GiB"}
    assert side.meant[f"{KAI}gpu-memory.request"] == 'nothing here: for container "main"'
    assert asked(spoken("kai", words, container="third")) == {}


def test_the_older_keys_of_kai_are_for_the_first_container_or_the_named_one() -> None:
    words = {"gpu-memory": "4096"}
    assert asked(spoken("kai", words, container="main", position=0)) == {"memory": "4GiB"}
    second = spoken("kai", words, container="side", position=1)
    assert asked(second) == {}
    assert second.meant["gpu-memory"] == "nothing here: for the first container of the pod"
    words["gpu-fraction-container-name"] = "side"
    assert asked(spoken("kai", words, container="side", position=1)) == {"memory": "4GiB"}
    assert asked(spoken("kai", words, container="main", position=0)) == {}


def all_of(words: Words, *, strict: bool = True) -> dict[str, dict[str, str]]:
    """Return what each dialect that knows a name of `words` makes of them."""
    tables = Tables(DIALECTS.values())
    found = [word for where in LOCATIONS for word in tables.find(where, words)]
    return {said.dialect.name: asked(said) for said in combine(found, strict=strict) if said.layer}


def test_whole_cards_are_nvidias_and_beside_a_share_of_hami_they_are_its_count() -> None:
    assert all_of({"nvidia.com/gpu": "2"}) == {"nvidia": {"count": "2"}}
    assert all_of({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}) == {
        "hami": {"count": "2", "memory": "3000MiB"}
    }


def test_a_part_of_nvidia_com_gpu_is_huaweis() -> None:
    assert all_of({"nvidia.com/gpu": "0.5"}) == {"huawei": {"memory-percent": "50"}}


def test_parts_of_cards_in_nvidia_keys_shrink_on_a_lenient_node() -> None:
    words = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=512MB"}
    said = spoken("nvidia", words, strict=False)
    assert asked(said) == {"memory": "512MiB", "count": "2"}
    assert "differs between cards" in said.notes[0]


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        ("nvidia", {"NVIDIA_GPU_MEMORY_REQUEST": "2", "NVIDIA_GPU_MEMORY_LIMIT": "1"}),
        ("nvidia", {"NVIDIA_GPU_MEMORY_LIMIT": "4Gi"}),
        ("kai", {"gpu-memory": "2048", "gpu-fraction": "0.5"}),
        ("huawei", {XGPU: "65", "volcano.sh/gpu-num": "2"}),
        ("baidu", {CGPU: "1", f"{CGPU}_core": "50"}),
        ("koordinator", {f"{KOORD}-core": "50"}),
    ],
)
def test_an_impossible_request_is_refused_by_a_lenient_node_too(dialect: str, words: Words) -> None:
    assert len(spoken(dialect, words, strict=False).problems) == 1


@pytest.mark.parametrize(
    ("dialect", "words", "given"),
    [
        ("huawei", {XGPU: "40", XGPU_CORE: "7"}, {"memory": "5GiB", "cores": "7"}),
        (
            "kubeshare",
            {"kubeshare/gpu_mem": "1073741824"},
            {"memory": "1GiB"},
        ),
        (
            "kai",
            {f"{KAI}gpu-memory.request": "1000"},
            {"memory": "1000B"},
        ),
    ],
)
def test_a_rule_of_the_vendors_product_is_a_note_where_a_node_is_lenient(
    dialect: str, words: Words, given: dict[str, str]
) -> None:
    said = spoken(dialect, words, strict=False)
    assert asked(said) == given
    assert len(said.notes) == 1
    assert DIALECTS[dialect].title in said.notes[0]
