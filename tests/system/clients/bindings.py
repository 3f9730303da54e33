# SPDX-License-Identifier: Apache-2.0
"""cuda-bindings: allocate, copy there and back, load a kernel and launch it, timed by events."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from cuda.bindings import driver

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 duration_ns) { ret; }
.visible .global .align 4 .f32 table[1000];
\0"""
KERNEL_MS = 30


def checked(answer: tuple[Any, ...]) -> Any:
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


checked(driver.cuInit(0))
device = checked(driver.cuDeviceGet(0))
context = checked(driver.cuDevicePrimaryCtxRetain(device))
checked(driver.cuCtxSetCurrent(context))

sent = np.random.default_rng(1).integers(0, 256, 3 << 20, dtype=np.uint8)
received = np.zeros_like(sent)
pointer = checked(driver.cuMemAlloc(sent.nbytes))
stream = checked(driver.cuStreamCreate(0))
checked(driver.cuMemcpyHtoDAsync(pointer, sent.ctypes.data, sent.nbytes, stream))
checked(driver.cuMemcpyDtoHAsync(received.ctypes.data, pointer, sent.nbytes, stream))
checked(driver.cuStreamSynchronize(stream))

library = checked(driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
kernel = checked(driver.cuLibraryGetKernel(library, b"spin"))
module = checked(driver.cuModuleLoadData(PTX))
function = checked(driver.cuModuleGetFunction(module, b"spin"))
_, table_bytes = checked(driver.cuModuleGetGlobal(module, b"table"))

duration = np.array([KERNEL_MS * 1_000_000], dtype=np.uint64)
parameters = np.array([duration.ctypes.data], dtype=np.uint64)
start, end = checked(driver.cuEventCreate(0)), checked(driver.cuEventCreate(0))
checked(driver.cuEventRecord(start, stream))
checked(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.ctypes.data, 0))
checked(driver.cuEventRecord(end, stream))
pending = driver.cuEventQuery(end)[0] == driver.CUresult.CUDA_ERROR_NOT_READY
checked(driver.cuEventSynchronize(end))
print(
    json.dumps(
        {
            "same": bool((sent == received).all()),
            "kernel_ms": KERNEL_MS,
            "elapsed_ms": checked(driver.cuEventElapsedTime(start, end)),
            "pending": pending,
            "table_bytes": table_bytes,
            "name": checked(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode(),
            "version": checked(driver.cuDriverGetVersion()),
            "kernel_name": checked(driver.cuKernelGetName(kernel)).decode(),
        }
    )
)
