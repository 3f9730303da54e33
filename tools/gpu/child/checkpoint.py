# SPDX-License-Identifier: Apache-2.0
"""A program that is taken off its card and put back, and one that does that to it, as told.

    python -m tools.gpu.child.checkpoint LIBCUDA

What the driver returns is part of the answer, also where it is an error.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from ctypes import byref, c_uint
from pathlib import Path

import pynvml

from tools.gpu.cuda import SUCCESS, Cuda, CudaError

from .conversation import Answer, converse

LOCK_MS = 60_000


class CheckpointLockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", c_uint), ("reserved", c_uint * 15))


class CheckpointProgram:
    """Either of the two: one that holds memory, or one that checkpoints others."""

    def __init__(self, library: str) -> None:
        self._path = library
        self._cuda: Cuda | None = None
        self._library: ctypes.CDLL | None = None

    # --- the program that is checkpointed ---

    def begin(self) -> Answer:
        """Initialize, and make a context."""
        try:
            self._cuda = Cuda(self._path)
            self._cuda.use_context()
        except CudaError as error:
            return {"code": error.code, "name": str(error)}
        return {"code": 0, "name": "CUDA_SUCCESS", "pid": os.getpid()}

    def take(self, size: str) -> Answer:
        """Allocate memory, and write to it."""
        try:
            self._of_context().allocate(int(size))
        except CudaError as error:
            return {"code": error.code, "name": str(error)}
        return {"code": 0, "name": "CUDA_SUCCESS"}

    def resident(self) -> Answer:
        """Return the process's own bytes of host memory."""
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        sizes = (fields[name].split()[0] for name in ("RssAnon", "RssShmem", "RssFile"))
        return {"bytes": sum(int(size) << 10 for size in sizes)}

    def _of_context(self) -> Cuda:
        if self._cuda is None:
            raise RuntimeError("it has no context")
        return self._cuda

    # --- the program that checkpoints ---

    def load(self) -> Answer:
        """Load the driver without initializing it; return whether it has the API."""
        self._library = ctypes.CDLL(self._path)
        return {"has": hasattr(self._library, "cuCheckpointProcessLock")}

    @staticmethod
    def card(uuid_: str, pid: str) -> Answer:
        """Return what NVML has of a card, and of a process on it: null if it is not listed."""
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(uuid_)
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        sizes = [process.usedGpuMemory for process in listed if process.pid == int(pid)]
        return {
            "persistence": bool(pynvml.nvmlDeviceGetPersistenceMode(card)),
            "used": pynvml.nvmlDeviceGetMemoryInfo(card).used,
            "process": sizes[0] if sizes else None,
        }

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

    def _timed(self, function: str, *arguments: object) -> Answer:
        """Return the result of a call, and how long it took."""
        if self._library is None:
            raise RuntimeError("it has no driver")
        began = time.monotonic_ns()
        code = int(getattr(self._library, function)(*arguments))
        ended = time.monotonic_ns()
        name = ctypes.c_char_p()
        if code != SUCCESS:
            self._library.cuGetErrorName(code, byref(name))
        return {
            "code": code,
            "name": (name.value or b"CUDA_SUCCESS").decode(),
            "ns": ended - began,
        }


def main() -> None:
    program = CheckpointProgram(sys.argv[1])
    names = [name for name in vars(CheckpointProgram) if not name.startswith("_")]
    converse({name: getattr(program, name) for name in names})


if __name__ == "__main__":
    main()
