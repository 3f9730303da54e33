# SPDX-License-Identifier: Apache-2.0
"""What nvidia-ml-py reports of every card, as a line of JSON; with --wait, for each line read."""

from __future__ import annotations

import json
import sys
from typing import Any

import pynvml


def card(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    split = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except pynvml.NVMLError_NotFound:
        samples = []
    try:
        mig = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:
        mig = None
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": uuid,
        "index": pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)),
        "bus": bus,
        "index_by_bus": pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)),
        "total": memory.total,
        "free": memory.free,
        "used": memory.used,
        "reserved": split.reserved,
        "used_by_programs": split.used,
        "busy": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "processes": {
            process.pid: process.usedGpuMemory
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        },
        "process_busy": {sample.pid: sample.smUtil for sample in samples},
        "capability": pynvml.nvmlDeviceGetCudaComputeCapability(handle),
        "mig": mig,
    }


def machine() -> dict[str, Any]:
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
        "cards": [card(index) for index in range(pynvml.nvmlDeviceGetCount())],
    }


pynvml.nvmlInit()
if sys.argv[1:] == ["--wait"]:
    for _ in sys.stdin:
        print(json.dumps(machine()), flush=True)
else:
    print(json.dumps(machine()))
pynvml.nvmlShutdown()
