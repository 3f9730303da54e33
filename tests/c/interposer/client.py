# SPDX-License-Identifier: Apache-2.0
"""What the tests' Python programs begin with: the driver through ctypes, errors as exceptions.

A test's own lines follow; they run in a process of their own and end with `say(...)`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

MIB = 1 << 20
OUT_OF_MEMORY = 2
cu = ctypes.CDLL("libcuda.so.1")
__all__ = ["POINTER", "c_uint", "os", "threading"]


class Refused(Exception):
    """A call did not return CUDA_SUCCESS; its argument is what it did return."""


def call(name: str, *arguments: object) -> None:
    result = getattr(cu, name)(*arguments)
    if result:
        raise Refused(name, result)


def result_of(function: Callable[..., object], *arguments: object) -> int:
    """What the driver answered to `function`: 0, or the error's number."""
    try:
        function(*arguments)
    except Refused as refused:
        return int(refused.args[1])
    return 0


def context(device: int = 0) -> c_void_p:
    handle = c_void_p()
    call("cuCtxCreate_v2", byref(handle), 0, device)
    return handle


def memory() -> tuple[int, int]:
    """(free, total)"""
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def alloc(size: int) -> int:
    pointer = c_uint64()
    call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
    return pointer.value


def alloc_pitch(size: int) -> int:
    pointer, pitch = c_uint64(), c_size_t()
    arguments = (c_size_t(MIB), c_size_t(-(-size // MIB)), 4)
    call("cuMemAllocPitch_v2", byref(pointer), byref(pitch), *arguments)
    return pointer.value


def alloc_managed(size: int) -> int:
    pointer = c_uint64()
    call("cuMemAllocManaged", byref(pointer), c_size_t(size), 1)
    return pointer.value


def alloc_async(size: int) -> int:
    pointer = c_uint64()
    call("cuMemAllocAsync", byref(pointer), c_size_t(size), None)
    return pointer.value


def alloc_async_ptsz(size: int) -> int:
    pointer = c_uint64()
    call("cuMemAllocAsync_ptsz", byref(pointer), c_size_t(size), None)
    return pointer.value


def alloc_from_pool(size: int, suffix: str = "") -> int:
    pointer, pool = c_uint64(), c_void_p()
    call("cuDeviceGetDefaultMemPool", byref(pool), 0)
    call(f"cuMemAllocFromPoolAsync{suffix}", byref(pointer), c_size_t(size), pool, None)
    return pointer.value


def alloc_from_pool_ptsz(size: int) -> int:
    return alloc_from_pool(size, "_ptsz")


class Properties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


DEVICE, HOST_NUMA = 1, 3


def create(size: int, location_type: int = DEVICE, device: int = 0) -> int:
    handle = c_uint64()
    properties = Properties(1, 0, location_type, device, None, 0)
    call("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_uint64(0))
    return handle.value


def free(pointer: int) -> None:
    call("cuMemFree_v2", c_uint64(pointer))


def free_async(pointer: int) -> None:
    call("cuMemFreeAsync", c_uint64(pointer), None)


def free_async_ptsz(pointer: int) -> None:
    call("cuMemFreeAsync_ptsz", c_uint64(pointer), None)


def release(handle: int) -> None:
    call("cuMemRelease", c_uint64(handle))


def proc_address(name: str, version: int = 13000, flags: int = 0) -> tuple[int, int | None, int]:
    """(result, address, status)"""
    address, status = c_void_p(), c_int(-1)
    where = (byref(address), version, c_uint64(flags), byref(status))
    result = cu.cuGetProcAddress_v2(name.encode(), *where)
    return int(result), address.value, status.value


def address_of(symbol: str) -> int | None:
    return ctypes.cast(getattr(cu, symbol), c_void_p).value


def say(*values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def threads() -> list[str]:
    """The status of each thread, without the one that the simulated driver has for checkpoints."""
    texts = [(task / "status").read_text() for task in Path("/proc/self/task").iterdir()]
    return [text for text in texts if not text.startswith("Name:\tcuda-restore")]


def start() -> c_void_p:
    """What a CUDA program begins with."""
    call("cuInit", 0)
    return context()


def reserve_address(size: int) -> int:
    pointer = c_uint64()
    call(
        "cuMemAddressReserve", byref(pointer), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)
    )
    return pointer.value


def map_memory(pointer: int, size: int, handle: int) -> None:
    call("cuMemMap", c_uint64(pointer), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))


def unmap(pointer: int, size: int) -> None:
    call("cuMemUnmap", c_uint64(pointer), c_size_t(size))


def retain(pointer: int) -> int:
    handle = c_uint64()
    call("cuMemRetainAllocationHandle", byref(handle), c_uint64(pointer))
    return handle.value


FILE_DESCRIPTOR = 1


def shareable(size: int, device: int = 0) -> int:
    """Physical memory that may be exported."""
    handle = c_uint64()
    properties = Properties(1, FILE_DESCRIPTOR, DEVICE, device, None, 0)
    call("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_uint64(0))
    return handle.value


def export(handle: int) -> tuple[int, int]:
    """(pid, descriptor)"""
    descriptor = c_int()
    what = (byref(descriptor), c_uint64(handle), FILE_DESCRIPTOR, c_uint64(0))
    call("cuMemExportToShareableHandle", *what)
    return os.getpid(), descriptor.value


def adopt(pid: int, descriptor: int) -> int:
    """Import what a process's descriptor carries."""
    handle = c_uint64()
    own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    call("cuMemImportFromShareableHandle", byref(handle), c_void_p(own), FILE_DESCRIPTOR)
    os.close(own)
    return handle.value


def mapped(handle: int, size: int) -> int:
    """Where `handle` was mapped, to addresses of its own."""
    pointer = reserve_address(size)
    map_memory(pointer, size, handle)
    return pointer


def ipc_handle(pointer: int) -> str:
    handle = (c_uint64 * 8)()
    call("cuIpcGetMemHandle", byref(handle), c_uint64(pointer))
    return bytes(handle).hex()


class IpcHandle(ctypes.Structure):
    _fields_ = (("words", c_uint64 * 8),)


def ipc_open(text: str) -> int:
    pointer = c_uint64()
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(text))
    call("cuIpcOpenMemHandle_v2", byref(pointer), handle, 1)
    return pointer.value


def ipc_close(pointer: int) -> None:
    call("cuIpcCloseMemHandle", c_uint64(pointer))


class External(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("fd", c_uint64),  # a union of two words
        ("name", c_uint64),
        ("size", c_uint64),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    )


def import_external(size: int) -> int:
    """Import a file as if it were another interface's memory."""
    memory = c_void_p()
    what = External(1, os.memfd_create("external"), 0, size)
    try:
        call("cuImportExternalMemory", byref(memory), byref(what))
    except Refused:
        os.close(what.fd)
        raise
    assert memory.value
    return memory.value


def destroy_external(memory: int) -> None:
    call("cuDestroyExternalMemory", c_void_p(memory))


def buffer_in(memory: int, size: int, offset: int = 0) -> int:
    """A buffer within an import."""
    pointer = c_uint64()
    what = (c_uint64 * 11)(offset, size)
    call("cuExternalMemoryGetMappedBuffer", byref(pointer), c_void_p(memory), byref(what))
    return pointer.value


def taken_of_card(driver: str) -> int:
    """What the driver itself says is taken of the current card; `driver` is its file."""
    free, total = c_size_t(), c_size_t()
    assert ctypes.CDLL(driver).cuMemGetInfo_v2(byref(free), byref(total)) == 0
    return total.value - free.value


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("max_size", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


RELEASE_THRESHOLD = 4
KEEP_ALL = (1 << 64) - 1


def pool_create(
    device: int = 0, location_type: int = DEVICE, max_size: int = 0, handle_types: int = 0
) -> c_void_p:
    pool = c_void_p()
    properties = PoolProperties(1, handle_types, location_type, device, None, max_size)
    call("cuMemPoolCreate", byref(pool), byref(properties))
    return pool


def pool_default(device: int = 0) -> c_void_p:
    pool = c_void_p()
    call("cuDeviceGetDefaultMemPool", byref(pool), device)
    return pool


def pool_threshold(pool: c_void_p, threshold: int) -> None:
    call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, byref(c_uint64(threshold)))


def pool_alloc(pool: c_void_p, size: int, suffix: str = "") -> int:
    pointer = c_uint64()
    call(f"cuMemAllocFromPoolAsync{suffix}", byref(pointer), c_size_t(size), pool, None)
    return pointer.value


def charged() -> int:
    """Of a tenant with one card."""
    free, total = memory()
    return total - free


def taken() -> int:
    """As taken_of_card, of the driver that BEHIND names."""
    return taken_of_card(os.environ["BEHIND"])


class AllocationNodeParameters(ctypes.Structure):
    _fields_ = (
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    )


class InstantiateParameters(ctypes.Structure):
    _fields_ = (
        ("flags", c_uint64),
        ("stream", c_void_p),
        ("error_node", c_void_p),
        ("result", c_int),
    )


UPLOAD = 2


def graph_new() -> c_void_p:
    graph = c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    return graph


def graph_that_keeps(size: int) -> tuple[c_void_p, int]:
    """A graph that allocates, and the address of that."""
    graph = graph_new()
    return graph, allocation_node(graph, None, size)[1]


def allocation_node(graph: c_void_p, after: c_void_p | None, size: int) -> tuple[c_void_p, int]:
    node = c_void_p()
    parameters = AllocationNodeParameters(PoolProperties(1, 0, DEVICE, 0), None, 0, size)
    before = (byref(after), c_size_t(1)) if after else (None, c_size_t(0))
    call("cuGraphAddMemAllocNode", byref(node), graph, *before, byref(parameters))
    return node, int(parameters.pointer)


def graph_of(*sizes: int) -> c_void_p:
    """A graph that allocates and frees, one size after the other."""
    graph = graph_new()
    after = None
    for size in sizes:
        node, pointer = allocation_node(graph, after, size)
        after = c_void_p()
        freed = (byref(node), c_size_t(1), c_uint64(pointer))
        call("cuGraphAddMemFreeNode", byref(after), graph, *freed)
    return graph


def instance(graph: c_void_p, by: str = "cuGraphInstantiateWithFlags", flags: int = 0) -> c_void_p:
    """Make it executable."""
    made = c_void_p()
    if "Params" in by:
        call(by, byref(made), graph, byref(InstantiateParameters(flags)))
    elif "Flags" in by:
        call(by, byref(made), graph, c_uint64(flags))
    else:
        call(by, byref(made), graph, None, None, c_size_t(0))
    return made
