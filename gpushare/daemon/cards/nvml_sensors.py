# SPDX-License-Identifier: Apache-2.0
"""A card's temperature, power, clocks and error counters, through NVML. It runs in the worker.

Nobody decides by them, so they are read seldom. A figure that the card or the driver does not have
is left out. nvmlDeviceGetPcieThroughput is not called: it takes 20 ms (nvml.h).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pynvml


def _utilization(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetUtilizationRates(handle).memory)


def _memory_temperature(handle: Any) -> int:
    [value] = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _reserved(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).reserved)


def _clock(kind: int) -> Callable[[Any], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetClockInfo(handle, kind))


def _ecc_errors(kind: int) -> Callable[[Any], int]:
    counter = pynvml.NVML_AGGREGATE_ECC
    return lambda handle: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


def _remapped(number: int) -> Callable[[Any], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetRemappedRows(handle)[number])


#: What each key of gpushare.metrics_schema.CardSensors is read with.
_READ: Final[Mapping[str, Callable[[Any], int]]] = {
    "temperature_celsius": lambda handle: int(
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    ),
    "memory_temperature_celsius": _memory_temperature,
    "power_milliwatts": lambda handle: int(pynvml.nvmlDeviceGetPowerUsage(handle)),
    "energy_millijoules": lambda handle: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
    "sm_clock_mhz": _clock(pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": _clock(pynvml.NVML_CLOCK_MEM),
    "memory_copy_percent": _utilization,
    "encoder_percent": lambda handle: int(pynvml.nvmlDeviceGetEncoderUtilization(handle)[0]),
    "decoder_percent": lambda handle: int(pynvml.nvmlDeviceGetDecoderUtilization(handle)[0]),
    "pcie_replays": lambda handle: int(pynvml.nvmlDeviceGetPcieReplayCounter(handle)),
    "correctable_rows": _remapped(0),
    "uncorrectable_rows": _remapped(1),
    "row_remap_failures": _remapped(3),
    "corrected_ecc_errors": _ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "uncorrected_ecc_errors": _ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    "reserved_bytes": _reserved,
}


def read(handle: Any) -> dict[str, int]:
    """Return what NVML tells of one card."""
    found = {}
    for name, function in _READ.items():
        with contextlib.suppress(pynvml.NVMLError):
            found[name] = function(handle)
    return found
