# SPDX-License-Identifier: Apache-2.0
"""The metrics of other exporters, with their labels, as their sources define them.

HAMi 2.9: cmd/vGPUmonitor/metrics.go and cmd/scheduler/metrics.go, each with the label zone.
dcgm-exporter 4.8: etc/default-counters.csv, and the profiling metrics that its packages enable.
gpu-manager 1.1: pkg/services/display/display.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Names = Mapping[str, tuple[str, ...]]


def _labels(names: str, labels: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(labels.split()) for name in names.split()}


HAMI: Final[Names] = {
    **_labels(
        "hami_host_gpu_memory_used_bytes hami_host_gpu_utilization_ratio "
        "hami_host_gpu_temperature_celsius hami_host_gpu_power_usage_watts",
        "node device_index device_uuid device_type zone",
    ),
    **_labels(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "device_index device_uuid device_type zone",
    ),
    **_labels(
        "hami_host_gpu_ecc_errors_total",
        "node device_index device_uuid device_type error_type zone",
    ),
    **_labels(
        "hami_vgpu_memory_used_bytes hami_vgpu_memory_limit_bytes "
        "hami_container_device_memory_bytes hami_container_device_utilization_ratio "
        "hami_container_last_kernel_elapsed_seconds hami_vgpu_memory_context_bytes "
        "hami_vgpu_memory_module_bytes hami_vgpu_memory_buffer_bytes",
        "namespace pod container vdevice_index device_uuid zone",
    ),
    **_labels(
        "hami_gpu_memory_limit_bytes hami_gpu_core_limit_ratio hami_gpu_shared_count "
        "hami_gpu_core_allocated_ratio",
        "node device_uuid device_index device_type zone",
    ),
    **_labels(
        "hami_gpu_memory_allocated_bytes",
        "node device_uuid device_index device_cores device_type zone",
    ),
    **_labels(
        "hami_node_gpu_overview",
        "node device_uuid device_index device_cores device_memory_limit device_type zone",
    ),
    **_labels("hami_node_gpu_memory_allocated_ratio", "node device_uuid device_index zone"),
    **_labels(
        "hami_vgpu_memory_allocated_bytes hami_vgpu_core_allocated_ratio",
        "namespace node pod container_index device_uuid zone",
    ),
    **_labels(
        "hami_mig_device_info hami_node_gpu_mig_instance_info hami_resource_quota_used "
        "hami_build_info",
        "",
    ),
}
HAMI_LEGACY: Final[Names] = {
    **_labels(
        "HostGPUMemoryUsage HostCoreUtilization", "nodeid deviceidx deviceuuid devicetype zone"
    ),
    **_labels(
        "vGPU_device_memory_usage_in_bytes vGPU_device_memory_limit_in_bytes "
        "Device_memory_desc_of_container Device_utilization_desc_of_container "
        "Device_last_kernel_of_container",
        "podnamespace podname ctrname vdeviceid deviceuuid zone",
    ),
    **_labels(
        "GPUDeviceMemoryLimit GPUDeviceCoreLimit GPUDeviceSharedNum GPUDeviceCoreAllocated",
        "nodeid deviceuuid deviceidx devicetype zone",
    ),
    **_labels(
        "GPUDeviceMemoryAllocated", "nodeid deviceuuid deviceidx devicecores devicetype zone"
    ),
    **_labels(
        "nodeGPUOverview",
        "nodeid deviceuuid deviceidx devicecores devicememorylimit devicetype zone",
    ),
    **_labels("nodeGPUMemoryPercentage", "nodeid deviceuuid deviceidx zone"),
    **_labels(
        "vGPUMemoryAllocated vGPUCoreAllocated",
        "podnamespace nodename podname containeridx deviceuuid zone",
    ),
    **_labels("nodeGPUMigInstance MigInfo QuotaUsed", ""),
}
DCGM: Final[Names] = {
    **_labels(
        "DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_GPU_TEMP "
        "DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION "
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_MEM_COPY_UTIL "
        "DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL DCGM_FI_DEV_XID_ERRORS DCGM_FI_DEV_FB_FREE "
        "DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_RESERVED DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS "
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "gpu UUID pci_bus_id device modelName Hostname DCGM_FI_DRIVER_VERSION",
    ),
    **_labels(
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT DCGM_FI_DEV_PCIE_RX_THROUGHPUT "
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL DCGM_FI_DEV_VGPU_LICENSE_STATUS "
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE DCGM_FI_PROF_DRAM_ACTIVE "
        "DCGM_FI_PROF_PCIE_TX_BYTES DCGM_FI_PROF_PCIE_RX_BYTES",
        "",
    ),
}
GPU_MANAGER: Final[Names] = {
    **_labels("container_gpu_utilization", "pod_name namespace node container_name gpu"),
    **_labels(
        "container_request_gpu_utilization", "pod_name namespace node container_name req_of_gpu"
    ),
    **_labels("container_gpu_memory_total", "pod_name namespace node container_name gpu_memory"),
    **_labels(
        "container_request_gpu_memory",
        "pod_name namespace node container_name req_of_gpu_memory",
    ),
}
ORIGINALS: Final[Mapping[str, Names]] = {
    "hami": HAMI,
    "hami-legacy": HAMI_LEGACY,
    "dcgm": DCGM,
    "gpu-manager": GPU_MANAGER,
}
