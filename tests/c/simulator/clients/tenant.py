# SPDX-License-Identifier: Apache-2.0
"""A program that holds a context and memory on command, line by line, through ctypes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
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


def trap() -> tuple[int, int]:
    """Launch a kernel that faults; return the results of the launch and of waiting for it."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"trap") == 0
    grid = (ctypes.c_uint(1),) * 6
    return cuda.cuLaunchKernel(function, *grid, 0, None, None, None), sync()


def in_mps() -> int:
    """Return CU_DEVICE_ATTRIBUTE_MPS_ENABLED."""
    value = ctypes.c_int(-1)
    assert cuda.cuDeviceGetAttribute(ctypes.byref(value), 133, 0) == 0
    return value.value


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
    "sync": sync,
    "trap": trap,
    "in_mps": in_mps,
    "listed": listed,
    "pid": os.getpid,
}

if __name__ == "__main__":
    for line in sys.stdin:
        verb, *arguments = line.split()
        print(json.dumps(VERBS[verb](*arguments)), flush=True)
