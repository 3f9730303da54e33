# SPDX-License-Identifier: Apache-2.0
"""Others' names for the same figures: off, unless they are asked for, and in others' units."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.exporter.aliases import COMPAT
from gpushare.exporter.exposition import FAMILIES, expose
from gpushare.exporter.metric_family import Snapshot
from gpushare.protocol.rows import KINDS

from .made import GIB, UUID, card, part, snapshot, tenant

MIB = 1 << 20
POD = ("team", "train-0", "main")
HAMI = dict(zip(("namespace", "pod", "container"), POD, strict=True))


def read(taken: Snapshot, *compat: str) -> list[tuple[str, dict[str, str], float]]:
    text, _ = expose(taken, compat=compat)
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.startswith("gpushare_")
    ]


def test_other_exporters_metrics_are_off_by_default() -> None:
    assert read(snapshot(tenant())) == []
    names = {name for name, _, _ in read(snapshot(tenant()), *COMPAT)}
    assert names == {family.name for families in COMPAT.values() for family in families}
    assert not names & {family.name for family in FAMILIES}


def test_hami_has_bytes_and_percent_by_pod_and_device() -> None:
    kinds = {
        **dict.fromkeys(KINDS, 0),
        "buffers": GIB,
        "pools": GIB,
        "modules": MIB,
        "contexts": GIB,
    }
    used = sum(kinds.values())
    made = part(kinds=kinds, used_bytes=used, utilization=29.5)
    labels = {**HAMI, "vdevice_index": "0", "device_uuid": UUID, "zone": "vGPU"}
    taken = replace(snapshot(tenant(cards=[made])), taken=made["last_active"] + 60)
    found = {name: value for name, said, value in read(taken, "hami") if said == labels}
    assert found == {
        "hami_vgpu_memory_used_bytes": used,
        "hami_vgpu_memory_limit_bytes": 6 * GIB,
        "hami_container_device_memory_bytes": used,
        "hami_container_device_utilization_ratio": 29.5,
        "hami_container_last_kernel_elapsed_seconds": 60,
        "hami_vgpu_memory_context_bytes": GIB,
        "hami_vgpu_memory_module_bytes": MIB,
        "hami_vgpu_memory_buffer_bytes": 2 * GIB,
    }


def test_hami_has_what_is_allocated_by_card_and_container() -> None:
    of_card = {"node": "node-1", "device_uuid": UUID, "device_index": "0", "zone": "vGPU"}
    two = snapshot(
        tenant("team/train-0/side", id="b", isolation="exclusive", cards=[part(cores=0)]),
        tenant(),
    )
    found = [
        (name, {key: text for key, text in said.items() if key not in of_card}, value)
        for name, said, value in read(two, "hami")
        if name.startswith(("hami_gpu", "hami_node", "hami_vgpu_core", "hami_vgpu_memory_alloc"))
    ]
    kind = {"device_type": "NVIDIA-NVIDIA H200"}
    main, side = ({"namespace": "team", "pod": "train-0", "container_index": n} for n in "01")
    assert sorted(found, key=str) == sorted(
        [
            ("hami_gpu_memory_limit_bytes", kind, 140 * GIB),
            ("hami_gpu_core_limit_ratio", kind, 100),
            ("hami_gpu_memory_allocated_bytes", {**kind, "device_cores": "100"}, 12 * GIB),
            ("hami_gpu_shared_count", kind, 2),
            ("hami_gpu_core_allocated_ratio", kind, 90),
            (
                "hami_node_gpu_overview",
                {**kind, "device_cores": "100", "device_memory_limit": str(140 * 1024)},
                12 * GIB,
            ),
            ("hami_node_gpu_memory_allocated_ratio", {}, 12 / 140),
            ("hami_vgpu_memory_allocated_bytes", main, 4 * GIB),
            ("hami_vgpu_memory_allocated_bytes", side, 4 * GIB),
            ("hami_vgpu_core_allocated_ratio", main, 30),
            ("hami_vgpu_core_allocated_ratio", side, 100),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("current", "legacy"),
    [
        ("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
        ("hami_container_last_kernel_elapsed_seconds", "Device_last_kernel_of_container"),
        ("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage"),
        ("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit"),
        ("hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated"),
        ("hami_node_gpu_overview", "nodeGPUOverview"),
        ("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated"),
        ("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated"),
    ],
)
def test_a_legacy_name_of_hami_has_the_same_values(current: str, legacy: str) -> None:
    taken = snapshot(tenant(cards=[part(0), part(1)]))

    def values(name: str, exporter: str) -> list[tuple[list[str], float]]:
        return sorted(
            (sorted(said.values()), value)
            for found, said, value in read(taken, exporter)
            if found == name
        )

    assert values(legacy, "hami-legacy") == values(current, "hami") != []


def test_the_legacy_names_of_hami_have_labels_of_their_own() -> None:
    labels = {name: set(said) for name, said, _ in read(snapshot(tenant()), "hami-legacy")}
    vgpu = {"podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone"}
    assert labels["vGPU_device_memory_usage_in_bytes"] == vgpu
    card = {"nodeid", "deviceuuid", "deviceidx", "devicetype", "zone"}
    assert labels["GPUDeviceMemoryLimit"] == labels["HostGPUMemoryUsage"] == card


def test_dcgm_has_mib_and_percent_by_card() -> None:
    labels = {
        "gpu": "0",
        "UUID": UUID,
        "pci_bus_id": "00000000:0F:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H200",
        "Hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": "580.159.04",
    }
    found = read(snapshot(cards=[card(xids={"31": 4, "79": 1})]), "dcgm")
    assert all(said == labels for _, said, _ in found)
    assert {name.removeprefix("DCGM_FI_DEV_"): value for name, _, value in found} == {
        "SM_CLOCK": 1980,
        "MEM_CLOCK": 3201,
        "MEMORY_TEMP": 47,
        "GPU_TEMP": 41,
        "POWER_USAGE": 250.5,
        "TOTAL_ENERGY_CONSUMPTION": 7_000_250,
        "PCIE_REPLAY_COUNTER": 5,
        "GPU_UTIL": 71,
        "MEM_COPY_UTIL": 12,
        "ENC_UTIL": 3,
        "DEC_UTIL": 4,
        "XID_ERRORS": 79,
        "FB_FREE": 135 * 1024,
        "FB_USED": 5 * 1024,
        "FB_RESERVED": 600,
        "UNCORRECTABLE_REMAPPED_ROWS": 7,
        "CORRECTABLE_REMAPPED_ROWS": 6,
        "ROW_REMAP_FAILURE": 0,
    }


def test_gpu_manager_has_each_card_and_the_total_in_mib() -> None:
    two = tenant(cards=[part(0, utilization=10.0), part(1, utilization=20.0)])
    found = {
        (name, *(said[label] for label in ("pod_name", "namespace", "node", "container_name")),
         next(value for label, value in said.items() if "gpu" in label)): value
        for name, said, value in read(snapshot(two), "gpu-manager")
    }  # fmt: skip
    who = ("train-0", "team", "node-1", "main")
    assert found == {
        ("container_gpu_utilization", *who, "gpu0"): 10,
        ("container_gpu_utilization", *who, "gpu1"): 20,
        ("container_gpu_utilization", *who, "total"): 30,
        ("container_gpu_memory_total", *who, "gpu0"): 3 * 1024,
        ("container_gpu_memory_total", *who, "gpu1"): 3 * 1024,
        ("container_gpu_memory_total", *who, "total"): 6 * 1024,
        ("container_request_gpu_memory", *who, "total"): 8 * 1024,
        ("container_request_gpu_utilization", *who, "total"): 0.6,
    }
    whole = tenant(isolation="exclusive", cards=[part(0, cores=0), part(1, cores=0)])
    assert [
        value
        for name, _, value in read(snapshot(whole), "gpu-manager")
        if name == "container_request_gpu_utilization"
    ] == [2]


def test_unknown_values_are_left_out_and_the_later_of_two_counts() -> None:
    unknown = card(used_bytes=None, utilization=None, sensors={}, xids={})
    silent = snapshot(tenant(cards=[part(utilization=None)]), cards=[unknown])
    names = {name for name, _, _ in read(silent, *COMPAT)}
    assert "hami_vgpu_memory_used_bytes" in names
    assert not names & {"hami_container_device_utilization_ratio", "container_gpu_utilization"}
    assert [name for name in names if name.startswith(("DCGM", "hami_host", "Host"))] == [
        "DCGM_FI_DEV_XID_ERRORS"
    ]
    twice = snapshot(
        tenant(id="b", created=2.0, cards=[part(used_bytes=2)]),
        tenant(id="a", created=1.0, cards=[part(used_bytes=1)]),
        tenant("docker-s", id="c"),  # of no pod
    )
    used = [
        value for name, _, value in read(twice, "hami") if name == "hami_vgpu_memory_used_bytes"
    ]
    assert used == [2]
