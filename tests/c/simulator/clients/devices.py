# SPDX-License-Identifier: Apache-2.0
"""The devices that a process has, by the driver and by NVML, as a line of JSON each."""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

import pynvml
from tenant import context, cuda  # type: ignore[import-not-found] # beside this file


def told(ordinal: int) -> dict[str, Any]:
    name, size = ctypes.create_string_buffer(96), ctypes.c_size_t()
    own, card = (ctypes.c_uint8 * 16)(), (ctypes.c_uint8 * 16)()
    multiprocessors = ctypes.c_int()
    assert cuda.cuDeviceGetName(name, len(name), ordinal) == 0
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), ordinal) == 0
    assert cuda.cuDeviceGetUuid_v2(own, ordinal) == 0
    assert cuda.cuDeviceGetUuid(card, ordinal) == 0
    assert cuda.cuDeviceGetAttribute(ctypes.byref(multiprocessors), 16, ordinal) == 0
    return {
        "name": name.value.decode(),
        "total": size.value,
        "uuid": str(uuid.UUID(bytes=bytes(own))),
        "card": str(uuid.UUID(bytes=bytes(card))),
        "multiprocessors": multiprocessors.value,
    }


def partitions() -> list[dict[str, Any]]:
    """Return what NVML reports of each card's instances."""
    pynvml.nvmlInit()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        card = pynvml.nvmlDeviceGetHandleByIndex(index)
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
            try:
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, place)
            except pynvml.NVMLError_NotFound:
                break
            parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
            found.append(
                {
                    "uuid": pynvml.nvmlDeviceGetUUID(instance),
                    "card": pynvml.nvmlDeviceGetUUID(parent),
                    "is_mig": pynvml.nvmlDeviceIsMigDeviceHandle(instance).value,
                    "ids": [
                        pynvml.nvmlDeviceGetGpuInstanceId(instance),
                        pynvml.nvmlDeviceGetComputeInstanceId(instance),
                    ],
                    "used": pynvml.nvmlDeviceGetMemoryInfo(instance).used,
                    "processes": [
                        [process.pid, process.gpuInstanceId]
                        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(instance)
                    ],
                }
            )
    return found


result, count = cuda.cuInit(0), ctypes.c_int()
if result == 0:
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
if sys.argv[1:] == ["nvml"]:
    assert context() == 0
    print(json.dumps(partitions()))
else:
    print(json.dumps([result, [told(ordinal) for ordinal in range(count.value)]]))
