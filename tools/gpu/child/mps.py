# SPDX-License-Identifier: Apache-2.0
"""A program that may be a client of an MPS server, step by step, as told.

    python -m tools.gpu.child.mps LIBCUDA UUID

What the driver returns is part of the answer, also where it is an error.
"""

from __future__ import annotations

import os
import sys
from ctypes import byref, c_size_t, c_uint64

import pynvml

from tools.gpu.cuda import Cuda, CudaError

from .conversation import Answer, converse


class MpsProgram:
    """One process of the card with that UUID."""

    def __init__(self, library: str, uuid: str) -> None:
        self._library, self._uuid = library, uuid
        self._cuda: Cuda | None = None

    def begin(self) -> Answer:
        """Initialize, and make a context."""
        try:
            self._cuda = Cuda(self._library)
            self._cuda.use_context()
        except CudaError as error:
            return {"code": error.code, "name": str(error)}
        return {"code": 0, "pid": os.getpid(), "multiprocessors": self._cuda.multiprocessors}

    def attribute(self) -> Answer:
        """Return CU_DEVICE_ATTRIBUTE_MPS_ENABLED, or what a driver without it says."""
        try:
            return {"in_mps": self._of_context().in_mps}
        except CudaError as error:
            return {"in_mps": str(error)}

    def info(self) -> Answer:
        free, total = c_size_t(), c_size_t()
        self._of_context().call("cuMemGetInfo_v2", byref(free), byref(total))
        return {"free": free.value, "total": total.value}

    def linear(self, size: str) -> Answer:
        pointer = c_uint64()
        return self._tried("cuMemAlloc_v2", byref(pointer), c_size_t(int(size)))

    def synchronize(self) -> Answer:
        return self._tried("cuCtxSynchronize")

    def trap(self) -> Answer:
        """Run a kernel that faults."""
        self._of_context().launch(self._of_context().function("trap"), ())
        return self.synchronize()

    def listed(self) -> Answer:
        """Return what NVML lists of the card: bytes by PID, by the kind of list."""
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        return {
            kind: {str(one.pid): one.usedGpuMemory for one in getattr(pynvml, name)(card)}
            for kind, name in (
                ("compute", "nvmlDeviceGetComputeRunningProcesses"),
                ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
            )
        }

    def _of_context(self) -> Cuda:
        if self._cuda is None:
            raise RuntimeError("it has no context")
        return self._cuda

    def _tried(self, function: str, *arguments: object) -> Answer:
        cuda = self._of_context()
        code = cuda.try_call(function, *arguments)
        return {"code": code, "name": cuda.error_name(code)}


def main() -> None:
    program = MpsProgram(sys.argv[1], sys.argv[2])
    names = [name for name in vars(MpsProgram) if not name.startswith("_")]
    converse({name: getattr(program, name) for name in names})


if __name__ == "__main__":
    main()
