# SPDX-License-Identifier: Apache-2.0
"""A program that holds a context, memory and work on command, line by line, through ctypes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import uuid
from collections.abc import Callable

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 duration_ns) { ret; }
.visible .entry trap() { trap; }
"""

cuda = ctypes.CDLL("libcuda.so.1")


def init() -> int:
    return int(cuda.cuInit(0))


def context(ordinal: str = "0") -> int:
    """Make the card's primary context and stay in it."""
    handle = ctypes.c_void_p()
    result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), int(ordinal))
    return int(result or cuda.cuCtxSetCurrent(handle))


def alloc(size: str) -> tuple[int, int]:
    """Return the result and the pointer."""
    pointer = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size)))
    return int(result), pointer.value


def free(pointer: str) -> int:
    return int(cuda.cuMemFree_v2(ctypes.c_uint64(int(pointer))))


def info() -> tuple[int, int]:
    """Return free and total bytes."""
    unused, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(unused), ctypes.byref(total)) == 0
    return unused.value, total.value


def kernel(name: bytes = b"spin") -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, name) == 0
    return function


def trap() -> tuple[int, int]:
    """Launch a kernel that faults; return the results of the launch and of waiting for it."""
    grid = (ctypes.c_uint(1),) * 6
    return cuda.cuLaunchKernel(kernel(b"trap"), *grid, 0, None, None, None), sync()


def in_mps() -> int:
    """Return CU_DEVICE_ATTRIBUTE_MPS_ENABLED."""
    value = ctypes.c_int(-1)
    assert cuda.cuDeviceGetAttribute(ctypes.byref(value), 133, 0) == 0
    return value.value


def uuids() -> list[str]:
    """Return the cards that the program sees."""
    count, found = ctypes.c_int(), (ctypes.c_uint8 * 16)()
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    listed = []
    for ordinal in range(count.value):
        assert cuda.cuDeviceGetUuid_v2(found, ordinal) == 0
        listed.append(f"GPU-{uuid.UUID(bytes=bytes(found))}")
    return listed


def launch(milliseconds: str, times: str = "1") -> int:
    """Launch kernels of a length, without waiting for them."""
    function = kernel()
    duration = ctypes.c_uint64(int(float(milliseconds) * 1e6))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    one = ctypes.c_uint(1)
    for _ in range(int(times)):
        grid = (one,) * 6
        result = cuda.cuLaunchKernel(function, *grid, 0, None, parameters, None)
        if result:
            return int(result)
    return 0


def sync() -> int:
    return int(cuda.cuCtxSynchronize())


def listed(kind: str = "") -> list[int]:
    """Return the processes on card 0 that NVML lists to this one, all or MPS clients."""
    import pynvml  # noqa: PLC0415 - the other clients' tests need no NVML

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    ask = getattr(pynvml, f"nvmlDeviceGet{kind}ComputeRunningProcesses")
    pids = [process.pid for process in ask(handle)]
    pynvml.nvmlShutdown()
    return pids


VERBS: dict[str, Callable[..., object]] = {
    "init": init,
    "context": context,
    "alloc": alloc,
    "free": free,
    "info": info,
    "launch": launch,
    "sync": sync,
    "trap": trap,
    "in_mps": in_mps,
    "uuids": uuids,
    "listed": listed,
    "pid": os.getpid,
}

if __name__ == "__main__":
    for line in sys.stdin:
        verb, *arguments = line.split()
        print(json.dumps(VERBS[verb](*arguments)), flush=True)
