# SPDX-License-Identifier: Apache-2.0
"""A program whose calls may fail, step by step, as told: of MPS, or of none.

    python -m tools.gpu.child.tried LIBCUDA UUID

What the driver returns is part of the answer, also where it is an error. Without `begin`, it is a
program that has loaded the driver and not initialized it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64
from pathlib import Path
from typing import Any

import pynvml

from tools.gpu.cuda import Cuda, CudaError

from .conversation import Answer, converse

LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
#: Of a kernel: what it takes on the simulated card, and how many rounds it has on a real one.
ROUND_NS, ROUNDS = 1_000_000, 100_000
COPIED = c_size_t(64 << 20)
#: Where the files of the driver lie that are none of its libraries.
PLACES = ("/dev/nvidia", "/dev/shm/", "/tmp/nvidia")


class TriedProgram:
    """One process of the card with that UUID."""

    def __init__(self, library: str, uuid: str) -> None:
        self._path, self._uuid = library, uuid
        ctypes.CDLL(library)
        self._cuda: Any = None  # until it has a context

    def begin(self) -> Answer:
        """Initialize, and make a context."""
        try:
            self._cuda = Cuda(self._path)
            self._cuda.use_context()
        except CudaError as error:
            return {"code": error.code, "name": str(error)}
        return {"code": 0, "pid": os.getpid(), "multiprocessors": self._cuda.multiprocessors}

    def attribute(self) -> Answer:
        """Return CU_DEVICE_ATTRIBUTE_MPS_ENABLED, or what a driver without it says."""
        try:
            return {"in_mps": self._cuda.in_mps}
        except CudaError as error:
            return {"in_mps": str(error)}

    def info(self) -> Answer:
        free, total = c_size_t(), c_size_t()
        self._cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return {"free": free.value, "total": total.value}

    def linear(self, size: str) -> Answer:
        pointer = c_uint64()
        return self._called("cuMemAlloc_v2", byref(pointer), c_size_t(int(size)))

    def synchronize(self) -> Answer:
        return self._called("cuCtxSynchronize")

    def trap(self) -> Answer:
        """Run a kernel that faults."""
        self._cuda.launch(self._cuda.function("trap"), ())
        return self.synchronize()

    def opened(self) -> Answer:
        """Return the driver's nodes, and files in shared memory, that are open or mapped here."""
        links = (str(link.resolve()) for link in Path("/proc/self/fd").iterdir())
        words = {*Path("/proc/self/maps").read_text().split(), *links}
        return {"files": sorted(word for word in words if word.startswith(PLACES))}

    def busy(self, work: str, seconds: str) -> Answer:
        """Run kernels, or copy, for so long; return the largest figure that NVML has of anybody."""
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        run = getattr(self, f"_{work}")()
        begun, until = time.time_ns() // 1000, time.monotonic() + float(seconds)
        while time.monotonic() < until:
            run()
            self._cuda.synchronize()
        samples = pynvml.nvmlDeviceGetProcessUtilization(card, begun)
        return {"smUtil": max(sample.smUtil for sample in samples)}

    def _kernels(self) -> Callable[[], None]:
        cuda = self._cuda
        function, result = cuda.function("work"), cuda.allocate(8)
        blocks = 2 * cuda.multiprocessors
        return lambda: cuda.launch(function, (ROUND_NS, ROUNDS, result), blocks, 256)

    def _copies(self) -> Callable[[], None]:
        """Copy from and to memory of the host that the card can read by itself."""
        cuda, host = self._cuda, ctypes.c_void_p()
        cuda.call("cuMemAllocHost_v2", byref(host), COPIED)
        there = c_uint64(cuda.allocate(COPIED.value))

        def copy() -> None:
            cuda.call("cuMemcpyHtoDAsync_v2", there, host, COPIED, None)
            cuda.call("cuMemcpyDtoHAsync_v2", host, there, COPIED, None)

        return copy

    def listed(self) -> Answer:
        """Return what NVML has of the card: bytes by PID, by the kind of list."""
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        return {
            kind: {str(one.pid): one.usedGpuMemory for one in getattr(pynvml, name)(card)}
            for kind, name in LISTS.items()
        }

    def _called(self, function: str, *arguments: object) -> Answer:
        """Return the result of a call."""
        code = self._cuda.try_call(function, *arguments)
        return {"code": code, "name": self._cuda.error_name(code)}


if __name__ == "__main__":
    converse(TriedProgram(*sys.argv[1:]))
