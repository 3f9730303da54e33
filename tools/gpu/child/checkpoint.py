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
from ctypes import byref, c_size_t, c_uint, c_uint64
from pathlib import Path

import pynvml

from tools.gpu import structures
from tools.gpu.cuda import SUCCESS, Cuda, CudaError

from .conversation import Answer, converse

#: A sample of the contents: so many bytes at the start of each step, and at the end.
SAMPLE_BYTES, STEP_BYTES = 64 << 10, 64 << 20
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
        self._held: list[tuple[str, int, int]] = []

    # --- the program that is checkpointed ---

    def begin(self) -> Answer:
        """Initialize, and make a context."""
        try:
            self._cuda = Cuda(self._path)
            self._cuda.use_context()
        except CudaError as error:
            return {"code": error.code, "name": str(error)}
        return {"code": 0, "name": "CUDA_SUCCESS", "pid": os.getpid()}

    def take(self, kind: str, size: str) -> Answer:
        """Allocate memory of a kind, and write to it."""
        try:
            pointer = getattr(self, f"_{kind}")(int(size))
        except CudaError as error:
            return {"code": error.code, "name": str(error)}
        self._held.append((kind, pointer, int(size)))
        for number, (at, length) in enumerate(self._samples(pointer, int(size))):
            self._copy_in(kind, at, self._pattern(number, length))
        return {"code": 0, "name": "CUDA_SUCCESS"}

    def same(self) -> Answer:
        """Return whether all memory has the contents that it was given."""
        wrong = [
            f"{kind} at {at - pointer}"
            for kind, pointer, size in self._held
            for number, (at, length) in enumerate(self._samples(pointer, size))
            if self._copy_out(kind, at, length) != self._pattern(number, length)
        ]
        return {"same": not wrong, "wrong": wrong[:8]}

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

    def _linear(self, size: int) -> int:
        pointer = c_uint64()
        self._of_context().call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        return pointer.value

    def _pooled(self, size: int) -> int:
        pointer = c_uint64()
        self._of_context().call("cuMemAllocAsync", byref(pointer), c_size_t(size), None)
        self._of_context().synchronize()
        return pointer.value

    def _pinned(self, size: int) -> int:
        return self._of_context().allocate_host(size)

    def _mapped(self, size: int) -> int:
        """Memory that is created and mapped, as PyTorch's expandable segments are."""
        cuda = self._of_context()
        where = structures.Location(structures.ON_DEVICE, 0)
        wanted = structures.Physical(type=structures.PINNED, location=where)
        handle, pointer, none = c_uint64(), c_uint64(), c_uint64()
        length, access = c_size_t(size), structures.Access(where, structures.READ_WRITE)
        cuda.call("cuMemCreate", byref(handle), length, byref(wanted), none)
        cuda.call("cuMemAddressReserve", byref(pointer), length, c_size_t(), none, none)
        cuda.call("cuMemMap", pointer, length, c_size_t(), handle, none)
        cuda.call("cuMemSetAccess", pointer, length, byref(access), c_size_t(1))
        return pointer.value

    @staticmethod
    def _samples(pointer: int, size: int) -> list[tuple[int, int]]:
        length = min(SAMPLE_BYTES, size)
        starts = [*range(0, size - length, STEP_BYTES), size - length]
        return [(pointer + start, length) for start in starts]

    @staticmethod
    def _pattern(number: int, length: int) -> bytes:
        return (f"{number:015d}\n".encode() * (length // 16 + 1))[:length]

    def _copy_in(self, kind: str, at: int, contents: bytes) -> None:
        if kind == "pinned":
            ctypes.memmove(at, contents, len(contents))
            return
        self._of_context().call("cuMemcpyHtoD_v2", c_uint64(at), contents, c_size_t(len(contents)))

    def _copy_out(self, kind: str, at: int, length: int) -> bytes:
        if kind == "pinned":
            return ctypes.string_at(at, length)
        kept = ctypes.create_string_buffer(length)
        self._of_context().call("cuMemcpyDtoH_v2", kept, c_uint64(at), c_size_t(length))
        return kept.raw

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
