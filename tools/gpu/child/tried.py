# SPDX-License-Identifier: Apache-2.0
"""A program whose calls may fail, step by step, as told: of MPS, of checkpoints, or of neither.

    python -m tools.gpu.child.tried LIBCUDA UUID

What the driver returns is part of the answer, also where it is an error. Without `begin`, it is a
program that has loaded the driver and not initialized it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from ctypes import byref, c_size_t, c_uint, c_uint64
from pathlib import Path

import pynvml

from tools.gpu.cuda import Cuda, CudaError

from .conversation import Answer, converse

LOCK_MS = 60_000
LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}


class CheckpointLockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", c_uint), ("reserved", c_uint * 15))


class TriedProgram:
    """One process of the card with that UUID, or one that checkpoints others."""

    def __init__(self, library: str, uuid: str) -> None:
        self._path, self._uuid = library, uuid
        self._library = ctypes.CDLL(library)
        self._cuda: Cuda | None = None

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
            return {"in_mps": self._of_context().in_mps}
        except CudaError as error:
            return {"in_mps": str(error)}

    def info(self) -> Answer:
        free, total = c_size_t(), c_size_t()
        self._of_context().call("cuMemGetInfo_v2", byref(free), byref(total))
        return {"free": free.value, "total": total.value}

    def linear(self, size: str) -> Answer:
        pointer = c_uint64()
        return self._timed("cuMemAlloc_v2", byref(pointer), c_size_t(int(size)))

    def synchronize(self) -> Answer:
        return self._timed("cuCtxSynchronize")

    def trap(self) -> Answer:
        """Run a kernel that faults."""
        self._of_context().launch(self._of_context().function("trap"), ())
        return self.synchronize()

    def listed(self) -> Answer:
        """Return what NVML has of the card: its memory, and bytes by PID, by the kind of list."""
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        lists = {
            kind: {str(one.pid): one.usedGpuMemory for one in getattr(pynvml, name)(card)}
            for kind, name in LISTS.items()
        }
        persistence = bool(pynvml.nvmlDeviceGetPersistenceMode(card))
        return {
            **lists,
            "used": pynvml.nvmlDeviceGetMemoryInfo(card).used,
            "persistence": persistence,
        }

    def resident(self, pid: str = "self") -> Answer:
        """Return the host memory of a process."""
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        return {"bytes": int(dict(line.split(":", 1) for line in lines)["VmRSS"].split()[0]) << 10}

    # --- checkpoints of others ---

    def has_checkpoints(self) -> Answer:
        return {"has": hasattr(self._library, "cuCheckpointProcessLock")}

    def initialize(self) -> Answer:
        return self._timed("cuInit", 0)

    def lock(self, pid: str) -> Answer:
        return self._timed("cuCheckpointProcessLock", int(pid), byref(CheckpointLockArgs(LOCK_MS)))

    def checkpoint(self, pid: str) -> Answer:
        return self._timed("cuCheckpointProcessCheckpoint", int(pid), None)

    def restore(self, pid: str) -> Answer:
        return self._timed("cuCheckpointProcessRestore", int(pid), None)

    def unlock(self, pid: str) -> Answer:
        return self._timed("cuCheckpointProcessUnlock", int(pid), None)

    def _of_context(self) -> Cuda:
        if self._cuda is None:
            raise RuntimeError("it has no context")
        return self._cuda

    def _timed(self, function: str, *arguments: object) -> Answer:
        """Return the result of a call, and how long it took."""
        began = time.monotonic_ns()
        code = int(getattr(self._library, function)(*arguments))
        ended = time.monotonic_ns()
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, byref(name))
        return {"code": code, "name": (name.value or b"unknown").decode(), "ns": ended - began}


if __name__ == "__main__":
    converse(TriedProgram(*sys.argv[1:]))
