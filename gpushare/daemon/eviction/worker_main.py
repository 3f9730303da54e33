# SPDX-License-Identifier: Apache-2.0
"""The eviction worker: the process that calls the checkpoint API, so that gpushared never hangs.

It answers one question after another, as the NVML worker does (cards/worker_main.py), and ends with
gpushared. A call that hangs ends with this process, at the deadline; what that has led to, another
worker asks the driver for. It makes no context, so it holds no memory of a card.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from gpushare.daemon.cards.worker_main import run_worker
from gpushare.daemon.core import privileges
from gpushare.host.mounts import own_shared_memory


def main() -> None:
    """Answer until gpushared hangs up."""
    with contextlib.suppress(OSError):
        own_shared_memory()
    run_worker("eviction", privileges.EVICTION_WORKER, lambda: (CheckpointApi, _failure))


def _failure(error: Exception) -> dict[str, Any]:
    return {"fault": f"{type(error).__name__}: {error}"}


RUNNING: Final = 0
LOCKED: Final = 1
CHECKPOINTED: Final = 2
FAILED: Final = 3

SUCCESS: Final = 0
NOT_INITIALIZED: Final = 3
ILLEGAL_STATE: Final = 401
_CALLS: Final = "cuCheckpointProcess"  # all of them are there from driver 570 on


class _LockArgs(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),  # 0: none
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class _NoArgs(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint64 * 8),)


class _GpuPair(ctypes.Structure):
    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class _RestoreArgs(ctypes.Structure):
    _fields_ = (
        ("pairs", ctypes.POINTER(_GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 6),
    )


class CheckpointApi:
    """NVIDIA's checkpoint API, cuCheckpointProcess* of `library`; OSError: it cannot be loaded.

    Every structure has 64 bytes in every version, and what a version does not know is 0. Source:
    cuda.h of CUDA 12.8 to 13.5. A restore with pairs is in drivers from 580 on, and cuda.h asks for
    a pair for each card that the process had.

    Each method answers with the driver's `code` (0: success), the `error` in words, and the
    `seconds` that the call took.
    """

    def __init__(self, library: str) -> None:
        self._cuda = ctypes.CDLL(library)
        self._is_initialised = False

    def describe(self) -> dict[str, Any]:
        """Return whether the driver has the API."""
        return {"has_api": hasattr(self._cuda, f"{_CALLS}Lock")}

    def state(self, pid: int) -> dict[str, Any]:
        """Return the `state` of process `pid` beside the answer."""
        state = ctypes.c_int(-1)
        return {**self._call("GetState", pid, state), "state": state.value}

    def lock(self, pids: Sequence[int], timeout_ms: int) -> dict[str, Any]:
        """Lock all of `pids` at the same time; `answers` has one for each.

        Each on a thread of its own: while one of two processes that wait for each other is locked,
        every call about the other may hang (NVIDIA/cuda-checkpoint issue 30).
        """
        answers: list[dict[str, Any]] = [{} for _ in pids]

        def lock(number: int, pid: int) -> None:
            answers[number] = self._call("Lock", pid, _LockArgs(timeout_ms=timeout_ms))

        threads = [
            threading.Thread(target=lock, args=(number, pid)) for number, pid in enumerate(pids)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"answers": answers}

    def checkpoint(self, pid: int) -> dict[str, Any]:
        """Move the GPU memory of a locked process to host memory."""
        return self._call("Checkpoint", pid, _NoArgs())

    def restore(self, pid: int, pairs: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Move it back; `pairs` are the UUIDs of each card and of the one in its place.

        Without persistence mode the caller has to have initialised the driver (cuda.h).
        """
        self._initialise()
        named = (_GpuPair * max(1, len(pairs)))(
            *(_GpuPair(_uuid(before), _uuid(after)) for before, after in pairs)
        )
        arguments = _RestoreArgs(pairs=named if pairs else None, count=len(pairs))
        return self._call("Restore", pid, arguments)

    def unlock(self, pid: int) -> dict[str, Any]:
        """Let a locked process go on."""
        return self._call("Unlock", pid, _NoArgs())

    def _initialise(self) -> int:
        if self._is_initialised:
            return SUCCESS
        code = int(self._cuda.cuInit(0))
        self._is_initialised = code == SUCCESS
        return code

    def _call(self, name: str, pid: int, argument: Any) -> dict[str, Any]:
        """Call cuCheckpointProcess`name` about a process."""
        function, began = getattr(self._cuda, f"{_CALLS}{name}"), time.monotonic()
        code = int(function(pid, ctypes.byref(argument)))
        if code == NOT_INITIALIZED and not self._is_initialised and not self._initialise():
            code = int(function(pid, ctypes.byref(argument)))
        return {
            "code": code,
            "error": "" if code == SUCCESS else self._name(code),
            "seconds": time.monotonic() - began,
        }

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        if self._cuda.cuGetErrorName(code, ctypes.byref(name)) != SUCCESS or not name.value:
            return f"error {code}"
        return name.value.decode(errors="replace")


def _uuid(text: str) -> ctypes.Array[ctypes.c_ubyte]:
    """Return the bytes of "GPU-8b1f..."."""
    return (ctypes.c_ubyte * 16)(*bytes.fromhex(text.removeprefix("GPU-").replace("-", "")))
