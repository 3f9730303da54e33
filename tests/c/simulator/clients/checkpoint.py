# SPDX-License-Identifier: Apache-2.0
"""A program with memory of every kind that is checkpointed, and one that checkpoints others."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenant  # type: ignore[import-not-found] # beside this file

cuda = tenant.cuda
Pointer = ctypes.c_uint64
FILE_DESCRIPTOR = 1
_held: dict[str, Any] = {}
_pending: dict[str, list[int]] = {}


class MemLocation(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", MemLocation),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", MemLocation), ("flags", ctypes.c_int))


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair."""

    _fields_ = (("old", ctypes.c_uint8 * 16), ("new", ctypes.c_uint8 * 16))


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 6),
    )


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


# --- the program that is checkpointed ---


def pattern(seed: str, size: int) -> bytes:
    return (seed.encode() * (size // len(seed) + 1))[:size]


def _fill(pointer: int, seed: str, size: int) -> int:
    return int(cuda.cuMemcpyHtoD_v2(Pointer(pointer), pattern(seed, size), ctypes.c_size_t(size)))


def fill(pointer: str, seed: str, size: str) -> int:
    return _fill(int(pointer), seed, int(size))


def same(pointer: str, seed: str, size: str) -> tuple[int, bool]:
    """Return the result of a copy from the card, and whether the bytes are the pattern's."""
    kept = ctypes.create_string_buffer(int(size))
    result = cuda.cuMemcpyDtoH_v2(kept, Pointer(int(pointer)), ctypes.c_size_t(int(size)))
    return int(result), kept.raw == pattern(seed, int(size))


def pooled(size: str) -> tuple[int, int]:
    """Allocate from the default pool."""
    pointer = Pointer()
    result = cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(int(size)), None)
    return int(result), pointer.value


def mapped(size: str, handle_types: str = "0", ordinal: str = "0") -> tuple[int, int]:
    """Create memory, map it, and export it as a file descriptor if it may be."""
    where = MemLocation(1, int(ordinal))
    properties = AllocationProp(type=1, handle_types=int(handle_types), location=where)
    length, handle, pointer = ctypes.c_size_t(int(size)), ctypes.c_uint64(), Pointer()
    made = cuda.cuMemCreate(
        ctypes.byref(handle), length, ctypes.byref(properties), ctypes.c_uint64()
    )
    if made:
        return int(made), 0
    zero = ctypes.c_uint64()
    assert (
        cuda.cuMemAddressReserve(ctypes.byref(pointer), length, ctypes.c_size_t(), zero, zero) == 0
    )
    assert cuda.cuMemMap(pointer, length, ctypes.c_size_t(), handle, zero) == 0
    access = AccessDesc(where, 3)
    assert cuda.cuMemSetAccess(pointer, length, ctypes.byref(access), ctypes.c_size_t(1)) == 0
    if int(handle_types):
        descriptor = ctypes.c_int()
        assert (
            cuda.cuMemExportToShareableHandle(
                ctypes.byref(descriptor), handle, int(handle_types), zero
            )
            == 0
        )
    return 0, pointer.value


def pinned(size: str, seed: str) -> int:
    """Allocate pinned memory of the host with contents."""
    address = ctypes.c_void_p()
    result = cuda.cuMemAllocHost_v2(ctypes.byref(address), ctypes.c_size_t(int(size)))
    assert address.value is not None
    ctypes.memmove(address.value, pattern(seed, int(size)), int(size))
    _held["pinned"] = (address.value, seed, int(size))
    return int(result)


def pinned_same() -> bool:
    """Return whether the pinned memory has its contents."""
    address, seed, size = _held["pinned"]
    return ctypes.string_at(address, size) == pattern(seed, size)


def array(seed: str) -> int:
    """Create an array of 64 x 64 bytes with contents."""
    made = ctypes.c_void_p()
    shape = ArrayDescriptor(64 * 64, 0, 0x01, 1)
    result = cuda.cuArrayCreate_v2(ctypes.byref(made), ctypes.byref(shape))
    size = ctypes.c_size_t(64 * 64)
    assert result or cuda.cuMemcpyHtoA_v2(made, ctypes.c_size_t(), pattern(seed, 4096), size) == 0
    _held["array"] = made, seed
    return int(result)


def array_same() -> bool:
    """Return whether the array has its contents."""
    made, seed = _held["array"]
    kept = ctypes.create_string_buffer(4096)
    assert cuda.cuMemcpyAtoH_v2(kept, made, ctypes.c_size_t(), ctypes.c_size_t(4096)) == 0
    return kept.raw == pattern(seed, 4096)


def event() -> int:
    """Record an event behind a kernel of 2 ms."""
    made = ctypes.c_void_p(), ctypes.c_void_p()
    for one in made:
        assert cuda.cuEventCreate(ctypes.byref(one), 0) == 0
    assert cuda.cuEventRecord(made[0], None) == 0
    assert tenant.launch("2") == 0
    assert cuda.cuEventRecord(made[1], None) == 0
    _held["events"] = made
    return 0


def elapsed() -> tuple[int, float]:
    """Return the time between the two events."""
    began, ended = _held["events"]
    span = ctypes.c_float()
    result = cuda.cuEventElapsedTime(ctypes.byref(span), began, ended)
    return int(result), span.value


def graph() -> int:
    """Capture a launch into a graph, and instantiate it."""
    stream, made, instance = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    function, duration = tenant.kernel(), ctypes.c_uint64(1000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert cuda.cuStreamBeginCapture_v2(stream, 2) == 0
    grid = (ctypes.c_uint(1),) * 6
    assert cuda.cuLaunchKernel(function, *grid, 0, stream, parameters, None) == 0
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(made)) == 0
    result = cuda.cuGraphInstantiateWithFlags(ctypes.byref(instance), made, ctypes.c_uint64())
    _held["graph"] = instance, stream
    return int(result)


def graph_launch() -> int:
    """Launch the graph and wait for it."""
    instance, stream = _held["graph"]
    return int(cuda.cuGraphLaunch(instance, stream) or cuda.cuStreamSynchronize(stream))


def managed(size: str) -> tuple[int, int]:
    """Allocate managed memory."""
    pointer = Pointer()
    result = cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(int(size)), 1)
    return int(result), pointer.value


def start(verb: str, *arguments: str) -> int:
    """Call a verb in a thread of its own; return the number of the thread."""
    done = _pending.setdefault("done", [])

    def call() -> None:
        assert tenant.context() == 0
        VERBS[verb](*arguments)
        done.append(1)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert thread.native_id is not None
    return thread.native_id


def done() -> int:
    """Return how many of the started calls have returned."""
    return len(_pending.get("done", []))


def resident() -> int:
    """Return the bytes of anonymous memory that the process has."""
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    )
    return int(fields["RssAnon"].split()[0]) << 10


def writing(path: str) -> None:
    """Answer, then copy numbers to the card and compare them, and write the count, until killed."""
    result, pointer = tenant.alloc(str(1 << 20))
    assert result == 0
    print(json.dumps("going"), flush=True)
    with Path(path).open("r+b") as file:
        count = mmap.mmap(file.fileno(), 8)
    for number in range(1 << 62):
        seed = f"{number:08d}"
        assert _fill(pointer, seed, 4096) == 0
        assert same(str(pointer), seed, "4096") == (0, True), seed
        count[:8] = number.to_bytes(8, "little")


# --- the program that checkpoints others ---


def state(pid: str) -> tuple[int, int]:
    value = ctypes.c_int(-1)
    return int(cuda.cuCheckpointProcessGetState(int(pid), ctypes.byref(value))), value.value


def thread(pid: str) -> tuple[int, int]:
    value = ctypes.c_int(-1)
    result = cuda.cuCheckpointProcessGetRestoreThreadId(int(pid), ctypes.byref(value))
    return int(result), value.value


def lock(pid: str, timeout_ms: str = "0") -> int:
    return int(cuda.cuCheckpointProcessLock(int(pid), ctypes.byref(LockArgs(int(timeout_ms)))))


def checkpoint(pid: str) -> int:
    return int(cuda.cuCheckpointProcessCheckpoint(int(pid), None))


def restore(pid: str, *pairs: str) -> int:
    """Restore a process; each of the pairs is OLD=NEW, two UUIDs."""
    listed = (GpuPair * len(pairs))()
    for pair, one in zip(pairs, listed, strict=True):
        old, new = (uuid.UUID(text.removeprefix("GPU-")).bytes for text in pair.split("="))
        one.old[:], one.new[:] = old, new
    arguments = RestoreArgs(listed if pairs else None, len(pairs))
    return int(cuda.cuCheckpointProcessRestore(int(pid), ctypes.byref(arguments)))


def unlock(pid: str) -> int:
    return int(cuda.cuCheckpointProcessUnlock(int(pid), None))


def evict(pid: str) -> list[int]:
    return [lock(pid), checkpoint(pid)]


def back(pid: str, *pairs: str) -> list[int]:
    return [restore(pid, *pairs), unlock(pid)]


def cycle(pid: str, times: str) -> list[int]:
    """Evict and restore a process that others evict and restore, too; return all results."""
    return [result for _ in range(int(times)) for result in (*evict(pid), *back(pid))]


def timed(verb: str, *arguments: str) -> tuple[object, float]:
    """Return the result of a verb, and its seconds."""
    began = time.monotonic()
    return VERBS[verb](*arguments), time.monotonic() - began


VERBS: dict[str, Callable[..., object]] = {
    **tenant.VERBS,
    **{
        verb.__name__: verb
        for verb in (
            array,
            array_same,
            back,
            checkpoint,
            cycle,
            done,
            elapsed,
            event,
            evict,
            fill,
            graph,
            graph_launch,
            lock,
            managed,
            mapped,
            pinned,
            pinned_same,
            pooled,
            resident,
            restore,
            same,
            start,
            state,
            thread,
            timed,
            unlock,
            writing,
        )
    },
}

if __name__ == "__main__":
    for line in sys.stdin:
        word, *words = line.split()
        print(json.dumps(VERBS[word](*words)), flush=True)
