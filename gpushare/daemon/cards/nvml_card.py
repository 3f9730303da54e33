# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of one card, or of one MIG instance, by its handle. As nvml_calls, which asks."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pynvml

GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})

#: NVML's brands (nvml.h, nvmlBrandType_t) as NVIDIA's container toolkit names them.
BRANDS: Final = {
    pynvml.NVML_BRAND_QUADRO: "quadro",
    pynvml.NVML_BRAND_TESLA: "tesla",
    pynvml.NVML_BRAND_NVS: "nvs",
    pynvml.NVML_BRAND_GRID: "grid",
    pynvml.NVML_BRAND_GEFORCE: "geforce",
    pynvml.NVML_BRAND_TITAN: "titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "nvidiavapps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "nvidiavpc",
    pynvml.NVML_BRAND_NVIDIA_VCS: "nvidiavcs",
    pynvml.NVML_BRAND_NVIDIA_VWS: "nvidiavws",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "nvidiacloudgaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "quadrortx",
    pynvml.NVML_BRAND_NVIDIA_RTX: "nvidiartx",
    pynvml.NVML_BRAND_NVIDIA: "nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "geforcertx",
    pynvml.NVML_BRAND_TITAN_RTX: "titanrtx",
}
#: Sold for data centres: Tesla, and since Ampere plain NVIDIA.
DATACENTER: Final = frozenset({"tesla", "nvidia"})

#: Those that are not the default, as nvidia-smi names them.
COMPUTE_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "Exclusive_Thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}

NvmlReply = dict[str, Any]


class NvmlError(Exception):
    """NVML answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def call(function: Any, *arguments: Any) -> Any:
    """Return what a function of pynvml returns; NvmlError."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(error.value, f"NVML: {error}") from error


def parts_of(handle: Any) -> dict[str, Any] | None:
    """Return the handles of a card's MIG instances by UUID, None of one that is whole."""
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return None
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise NvmlError(error.value, f"NVML: {error}") from error
        return None  # NOT_SUPPORTED
    found = {}
    for index in range(most):
        with contextlib.suppress(pynvml.NVMLError):  # NOT_FOUND: none at that place
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found[str(pynvml.nvmlDeviceGetUUID(part))] = part
    return found


def instance_facts(uuid: str, handle: Any) -> NvmlReply:
    """Return what a MIG instance is, without what it has of its card."""
    total, reserved = memory_of(handle)[:2]
    return {
        "uuid": uuid,
        "model": call(pynvml.nvmlDeviceGetName, handle),
        "total": total,
        "memory": total - reserved,
        "number": call(pynvml.nvmlDeviceGetIndex, handle),
        "gpu_instance": call(pynvml.nvmlDeviceGetGpuInstanceId, handle),
        "compute_instance": call(pynvml.nvmlDeviceGetComputeInstanceId, handle),
    }


def bus_id(handle: Any) -> str:
    """Return the PCI address as NVML writes it, 00000000:0F:00.0; "" where there is none."""
    with contextlib.suppress(pynvml.NVMLError):
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        return f"{pci.domain:08X}:{pci.bus:02X}:{pci.device:02X}.0"
    return ""


def compute_mode(handle: Any) -> str:
    """Return which programs can have a context on the card: "" for any, the default."""
    try:
        return COMPUTE_MODES.get(pynvml.nvmlDeviceGetComputeMode(handle), "")
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise NvmlError(error.value, f"NVML: {error}") from error
        return ""  # NOT_SUPPORTED


def brand_of(handle: Any) -> str:
    """Return the brand as NVIDIA_REQUIRE_ variables name it, "" where it is not known."""
    try:
        return BRANDS.get(pynvml.nvmlDeviceGetBrand(handle), "")
    except pynvml.NVMLError:
        return ""


def capability(handle: Any) -> list[int] | None:
    """Return the compute capability, None where it is not known."""
    try:
        return list(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    except pynvml.NVMLError:
        return None


def figures(index: int) -> NvmlReply:
    """Return the figures of a card that differ as soon as something runs on it, or allocates."""
    handle = call(pynvml.nvmlDeviceGetHandleByIndex, index)
    total, _, used = memory_of(handle)
    busy = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    uuid = call(pynvml.nvmlDeviceGetUUID, handle)
    parts = parts_of(handle)
    listed = None if parts is None else list(parts)
    return {"uuid": uuid, "busy": busy, "total": total, "used": used, "parts": listed}


def memory_of(handle: Any) -> tuple[int, int, int]:
    """Return the card's total, what of it the driver keeps (only v2 tells), and what is used."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        memory = call(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return int(memory.total), 0, int(memory.used)
    except pynvml.NVMLError as error:
        raise NvmlError(error.value, f"NVML: {error}") from error
    return int(memory.total), int(memory.reserved), int(memory.used)
