# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0414 - programs have these words from here
"""The driver through ctypes, as a program in a container sees it; errors are exceptions.

It is what the tests' Python programs begin with (program() in conftest.py), and a module of tests
that run in a process of a container (inside.py). The driver is loaded when it is first called.
"""

from __future__ import annotations

import ctypes as ctypes
import json
import os as os
import sys as sys
import threading as threading
from collections.abc import Callable as Callable
from ctypes import byref as byref
from ctypes import c_int as c_int
from ctypes import c_size_t as c_size_t
from ctypes import c_uint as c_uint
from ctypes import c_uint64 as c_uint64
from ctypes import c_void_p as c_void_p
from pathlib import Path as Path
from typing import Any as Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
LAUNCH_FAILED = 719


class Driver:
    """A driver's library; `variable` has its path, or `name` is looked for as programs do."""

    def __init__(self, variable: str, name: str = "") -> None:
        self._where = variable, name

    def loaded(self) -> ctypes.CDLL:
        if "library" not in self.__dict__:
            variable, default = self._where
            self.library = ctypes.CDLL(os.environ.get(variable, default))
        return self.library

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("cu", "fake_")):  # pytest looks for marks of its own
            raise AttributeError(name)
        return getattr(self.loaded(), name)


cu = Driver("LIBCUDA", "libcuda.so.1")
#: The driver itself, as a program reaches it that goes around the filter.
behind = Driver("BEHIND")


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


def made(name: str, *arguments: object) -> c_void_p:
    """What a call has written to its first argument, a handle."""
    handle = c_void_p()
    call(name, byref(handle), *arguments)
    return handle


def number(name: str, *arguments: object) -> int:
    """As made(), of an address or a handle that is a number."""
    handle = c_uint64()
    call(name, byref(handle), *arguments)
    return handle.value


def context(device: int = 0) -> c_void_p:
    return made("cuCtxCreate_v2", 0, device)


def current() -> c_void_p:
    return made("cuCtxGetCurrent")


def synchronize() -> None:
    call("cuCtxSynchronize")


def start(device: int = 0) -> c_void_p:
    """What a CUDA program begins with."""
    call("cuInit", 0)
    return context(device)


def primary(device: int = 0) -> c_void_p:
    """Retain the primary context, and make it current."""
    handle = made("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", handle)
    return handle


def _memory(driver: Driver) -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    result = driver.cuMemGetInfo_v2(byref(free), byref(total))
    if result:
        raise Refused("cuMemGetInfo_v2", result)
    return free.value, total.value


def memory() -> tuple[int, int]:
    """(free, total)"""
    return _memory(cu)


def charged() -> int:
    """Of a tenant with one card."""
    free, total = memory()
    return total - free


def taken() -> int:
    """What the driver itself says is taken of the current card."""
    free, total = _memory(behind)
    return total - free


def begin(unit: int = MIB) -> Callable[[float], None]:
    """Start, and return what asserts how much is charged: all that the driver has given."""
    start()
    before = taken()

    def holds(units: float) -> None:
        assert (charged() / unit, (taken() - before) / unit) == (units, units)

    return holds


def alloc(size: int) -> int:
    return number("cuMemAlloc_v2", c_size_t(size))


def alloc_pitch(size: int) -> int:
    pitch = c_size_t()
    return number("cuMemAllocPitch_v2", byref(pitch), c_size_t(MIB), c_size_t(-(-size // MIB)), 4)


def alloc_managed(size: int) -> int:
    return number("cuMemAllocManaged", c_size_t(size), 1)


def alloc_async(size: int, suffix: str = "", stream: c_void_p | None = None) -> int:
    return number(f"cuMemAllocAsync{suffix}", c_size_t(size), stream)


class Properties(ctypes.Structure):
    _fields_ = (
        *((name, c_int) for name in ("type", "handle_types", "location_type", "location_id")),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


DEVICE, HOST, HOST_NUMA = 1, 2, 3
FILE_DESCRIPTOR = 1


def create(size: int, location_type: int = DEVICE, device: int = 0, handle_types: int = 0) -> int:
    properties = Properties(1, handle_types, location_type, device, None, 0)
    return number("cuMemCreate", c_size_t(size), byref(properties), c_uint64(0))


def free(pointer: int) -> None:
    call("cuMemFree_v2", c_uint64(pointer))


def free_async(pointer: int, suffix: str = "") -> None:
    call(f"cuMemFreeAsync{suffix}", c_uint64(pointer), None)


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


def in_child(work: Callable[[], object]) -> int:
    """What waitpid says of a forked child that has done it; one that hangs ends by SIGALRM."""
    child = os.fork()
    if child == 0:
        import signal  # noqa: PLC0415 - of few programs

        signal.alarm(20)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


_kept: list[object] = []


def meanwhile(*steps: Callable[[], object]) -> None:
    """Another thread's steps: the fake driver takes them when it has done what it is asked for.

    The filter has not heard of that yet.
    """
    act = ctypes.CFUNCTYPE(None)(lambda: [step() for step in steps] and None)
    _kept.append(act)
    where = c_void_p.in_dll(behind.loaded(), "fake_meanwhile")
    where.value = ctypes.cast(act, c_void_p).value


def reserve_address(size: int) -> int:
    return number("cuMemAddressReserve", c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))


def map_memory(pointer: int, size: int, handle: int) -> None:
    call("cuMemMap", c_uint64(pointer), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))


def unmap(pointer: int, size: int) -> None:
    call("cuMemUnmap", c_uint64(pointer), c_size_t(size))


def retain(pointer: int) -> int:
    return number("cuMemRetainAllocationHandle", c_uint64(pointer))


def shareable(size: int, device: int = 0) -> int:
    """Physical memory that may be exported."""
    return create(size, DEVICE, device, FILE_DESCRIPTOR)


def export(handle: int) -> tuple[int, int]:
    """(pid, descriptor)"""
    descriptor = c_int()
    what = (byref(descriptor), c_uint64(handle), FILE_DESCRIPTOR, c_uint64(0))
    call("cuMemExportToShareableHandle", *what)
    return os.getpid(), descriptor.value


def adopt(pid: int, descriptor: int) -> int:
    """Import what a process's descriptor carries."""
    own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        return number("cuMemImportFromShareableHandle", c_void_p(own), FILE_DESCRIPTOR)
    finally:
        os.close(own)


def mapped(handle: int, size: int) -> int:
    """Where `handle` was mapped, to addresses of its own."""
    pointer = reserve_address(size)
    map_memory(pointer, size, handle)
    return pointer


class IpcHandle(ctypes.Structure):
    _fields_ = (("words", c_uint64 * 8),)


def ipc_handle(pointer: int) -> str:
    handle = IpcHandle()
    call("cuIpcGetMemHandle", byref(handle), c_uint64(pointer))
    return bytes(handle).hex()


def ipc_open(text: str, form: str = "_v2") -> int:
    return number(f"cuIpcOpenMemHandle{form}", IpcHandle.from_buffer_copy(bytes.fromhex(text)), 1)


def ipc_close(pointer: int) -> None:
    call("cuIpcCloseMemHandle", c_uint64(pointer))


class External(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("fd", c_uint64),
        ("name", c_uint64),  # a union of two words
        ("size", c_uint64),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    )


def import_external(size: int) -> int:
    """Import a file as if it were another interface's memory."""
    what = External(1, os.memfd_create("external"), 0, size)
    try:
        return made("cuImportExternalMemory", byref(what)).value or 0
    except Refused:
        os.close(what.fd)
        raise


def destroy_external(memory: int) -> None:
    call("cuDestroyExternalMemory", c_void_p(memory))


def buffer_in(memory: int, size: int, offset: int = 0) -> int:
    """A buffer within an import."""
    what = (c_uint64 * 11)(offset, size)
    return number("cuExternalMemoryGetMappedBuffer", c_void_p(memory), byref(what))


class PoolProperties(ctypes.Structure):
    _fields_ = (
        *((name, c_int) for name in ("type", "handle_types", "location_type", "location_id")),
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
    properties = PoolProperties(1, handle_types, location_type, device, None, max_size)
    return made("cuMemPoolCreate", byref(properties))


def pool_default(device: int = 0) -> c_void_p:
    return made("cuDeviceGetDefaultMemPool", device)


def pool_threshold(pool: c_void_p, threshold: int) -> None:
    call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, byref(c_uint64(threshold)))


def pool_alloc(pool: c_void_p, size: int, suffix: str = "") -> int:
    return number(f"cuMemAllocFromPoolAsync{suffix}", c_size_t(size), pool, None)


def pool_trim(pool: c_void_p, keep: int = 0) -> None:
    call("cuMemPoolTrimTo", pool, c_size_t(keep))


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
    return made("cuGraphCreate", 0)


def graph_that_keeps(size: int, device: int = 0) -> tuple[c_void_p, int]:
    """A graph that allocates, and the address of that."""
    graph = graph_new()
    return graph, allocation_node(graph, None, size, device)[1]


def allocation_node(
    graph: c_void_p, after: c_void_p | None, size: int, device: int = 0
) -> tuple[c_void_p, int]:
    parameters = AllocationNodeParameters(PoolProperties(1, 0, DEVICE, device), None, 0, size)
    before = (byref(after), c_size_t(1)) if after else (None, c_size_t(0))
    node = made("cuGraphAddMemAllocNode", graph, *before, byref(parameters))
    return node, int(parameters.pointer)


def graph_of(*sizes: int) -> c_void_p:
    """A graph that allocates and frees, one size after the other."""
    graph = graph_new()
    after = None
    for size in sizes:
        node, pointer = allocation_node(graph, after, size)
        after = made("cuGraphAddMemFreeNode", graph, byref(node), c_size_t(1), c_uint64(pointer))
    return graph


def instance(graph: c_void_p, by: str = "cuGraphInstantiateWithFlags", flags: int = 0) -> c_void_p:
    """Make it executable."""
    if "Params" in by:
        return made(by, graph, byref(InstantiateParameters(flags)))
    if "Flags" in by:
        return made(by, graph, c_uint64(flags))
    return made(by, graph, None, None, c_size_t(0))


def launch_graph(graph: c_void_p, stream: c_void_p | None = None) -> None:
    call("cuGraphLaunch", graph, stream)


def trim_graphs() -> None:
    call("cuDeviceGraphMemTrim", 0)


def stream_new(flags: int = 1) -> c_void_p:
    return made("cuStreamCreate", flags)


class Array1(ctypes.Structure):
    _fields_ = tuple((name, c_uint) for name in ("w", "h", "format", "channels"))


class Array3D1(ctypes.Structure):
    _fields_ = tuple((name, c_uint) for name in ("w", "h", "d", "format", "channels", "flags"))


class Array2(ctypes.Structure):
    _fields_ = (("w", c_size_t), ("h", c_size_t), ("format", c_uint), ("channels", c_uint))


class Array3D2(ctypes.Structure):
    _fields_ = (
        *((name, c_size_t) for name in ("w", "h", "d")),
        *((name, c_uint) for name in ("format", "channels", "flags")),
    )


FLOAT, LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x20, 1, 4, 0x40, 0x80
ROWS = MIB // 4096  # of 4 KiB each


def array(rows: int, depth: int = 0, flags: int = 0) -> c_void_p:
    return made("cuArray3DCreate_v2", byref(Array3D2(1024, rows, depth, FLOAT, 1, flags)))


def mipmap(rows: int, depth: int = 0, flags: int = 0, levels: int = 1) -> c_void_p:
    shape = Array3D2(1024, rows, depth, FLOAT, 1, flags)
    return made("cuMipmappedArrayCreate", byref(shape), levels)


def destroy(array: c_void_p) -> None:
    call("cuArrayDestroy", array)


def destroy_mipmap(array: c_void_p) -> None:
    call("cuMipmappedArrayDestroy", array)


HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n"
KERNEL = ".visible .entry empty() { ret; }\n"
NO_OPTIONS = (None, None, 0, None, None, 0)


def image(size: int, managed: int = 0, more: str = "") -> bytes:
    """A module with variables of those sizes."""
    text = HEAD + more
    if size:
        text += f".visible .global .align 4 .b8 table[{size}];\n"
    if managed:
        text += f".visible .global .attribute(.managed) .b8 both[{managed}];\n"
    return text.encode() + b"\0"


def image_file(data: bytes) -> bytes:
    """Where `data` was written to."""
    path = Path(os.environ["GPUSHARE_TENANT_DIR"]).with_name("image")
    path.write_bytes(data)
    return bytes(path)


def module(data: bytes) -> c_void_p:
    return made("cuModuleLoadData", data)


def unload(module: c_void_p) -> None:
    call("cuModuleUnload", module)


def library(data: bytes) -> c_void_p:
    return made("cuLibraryLoadData", data, *NO_OPTIONS)


def unload_library(library: c_void_p) -> None:
    call("cuLibraryUnload", library)


def variable_of(library: c_void_p, by: str = "cuLibraryGetGlobal") -> int:
    return number(by, byref(c_size_t()), library, b"table")


SPIN = HEAD + ".visible .entry spin(.param .u64 spin_duration_ns)\n{\n\tret;\n}\n\0"


def kernel() -> c_void_p:
    """One that takes as long as it is told."""
    return made("cuModuleGetFunction", module(SPIN.encode()), b"spin")


def launch(function: c_void_p, duration_ns: int, stream: c_void_p | None = None) -> None:
    duration = c_uint64(duration_ns)
    parameters = (c_void_p * 1)(ctypes.addressof(duration))
    call("cuLaunchKernel", function, *[c_uint(1)] * 6, c_uint(0), stream, parameters, None)


STACK, FIFO, HEAP, PENDING = 0, 1, 2, 4


def limit(which: int) -> int:
    value = c_size_t()
    call("cuCtxGetLimit", byref(value), which)
    return value.value


def set_limit(which: int, value: int) -> None:
    call("cuCtxSetLimit", which, c_size_t(value))


def pool_handle(pool: c_void_p) -> int:
    """The descriptor of the pool"""
    descriptor = c_int()
    where = (byref(descriptor), pool, FILE_DESCRIPTOR, c_uint64())
    call("cuMemPoolExportToShareableHandle", *where)
    return descriptor.value


def pool_export(pool: c_void_p, pointer: int) -> tuple[int, int, str]:
    """(pid, descriptor of the pool, what names the allocation)"""
    descriptor, exported = pool_handle(pool), IpcHandle()
    call("cuMemPoolExportPointer", byref(exported), c_uint64(pointer))
    return os.getpid(), descriptor, bytes(exported).hex()


def pool_import(pid: int, descriptor: int, text: str) -> int:
    """The allocation of another process's pool."""
    own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    where = c_void_p(own), FILE_DESCRIPTOR, c_uint64()
    pool = made("cuMemPoolImportFromShareableHandle", *where)
    assert result_of(pool_alloc, pool, 1) != 0  # it is not ours
    exported = IpcHandle.from_buffer_copy(bytes.fromhex(text))
    return number("cuMemPoolImportPointer", pool, byref(exported))
