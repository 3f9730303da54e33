# SPDX-License-Identifier: Apache-2.0
"""A tenant that shares memory with others, by descriptors and by IPC handles."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable

from tenant import VERBS, cuda  # type: ignore[import-not-found] # beside this file

DEVICE, HOST, HOST_NUMA = 1, 2, 3
FILE_DESCRIPTOR = 1


class MemoryLocation(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProperties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", MemoryLocation),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class AccessDescription(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", MemoryLocation), ("flags", ctypes.c_int))


class Handle(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = (("bytes", ctypes.c_char * 64),)


def create(size: str, location: str = str(DEVICE), number: str = "0") -> tuple[int, int]:
    """Return the result and the handle of physical memory."""
    handle = ctypes.c_uint64()
    wanted = AllocationProperties(1, FILE_DESCRIPTOR, MemoryLocation(int(location), int(number)))
    result = cuda.cuMemCreate(
        ctypes.byref(handle), ctypes.c_size_t(int(size)), ctypes.byref(wanted), ctypes.c_uint64()
    )
    return int(result), handle.value


def export(handle: str) -> tuple[int, int]:
    """Return the result and a descriptor."""
    descriptor = ctypes.c_int(-1)
    result = cuda.cuMemExportToShareableHandle(
        ctypes.byref(descriptor),
        ctypes.c_uint64(int(handle)),
        FILE_DESCRIPTOR,
        ctypes.c_uint64(),
    )
    return int(result), descriptor.value


def take(pid: str, descriptor: str) -> tuple[int, int]:
    """Import another process's descriptor; return the result and the handle."""
    handle = ctypes.c_uint64()
    file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    result = cuda.cuMemImportFromShareableHandle(
        ctypes.byref(handle), ctypes.c_void_p(file), FILE_DESCRIPTOR
    )
    os.close(file)
    return int(result), handle.value


def release(handle: str) -> int:
    return int(cuda.cuMemRelease(ctypes.c_uint64(int(handle))))


def map_(handle: str, size: str) -> int:
    """Map the memory where it can be read and written; return its address."""
    pointer, none = ctypes.c_uint64(), ctypes.c_uint64()
    length = ctypes.c_size_t(int(size))
    assert cuda.cuMemAddressReserve(ctypes.byref(pointer), length, none, none, none) == 0
    assert cuda.cuMemMap(pointer, length, none, ctypes.c_uint64(int(handle)), none) == 0
    access = AccessDescription(MemoryLocation(DEVICE, 0), 3)
    assert cuda.cuMemSetAccess(pointer, length, ctypes.byref(access), ctypes.c_size_t(1)) == 0
    return pointer.value


def unmap(pointer: str, size: str) -> int:
    return int(cuda.cuMemUnmap(ctypes.c_uint64(int(pointer)), ctypes.c_size_t(int(size))))


def handle_of(pointer: str) -> tuple[int, int]:
    """Return the result and the handle of what is mapped at an address."""
    handle = ctypes.c_uint64()
    result = cuda.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(int(pointer)))
    return int(result), handle.value


def write(pointer: str, value: str) -> int:
    byte = ctypes.c_uint8(int(value))
    return int(
        cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(int(pointer)), ctypes.byref(byte), ctypes.c_size_t(1))
    )


def read(pointer: str) -> int:
    byte = ctypes.c_uint8()
    source = ctypes.c_uint64(int(pointer))
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(byte), source, ctypes.c_size_t(1)) == 0
    return byte.value


def ipc_get(pointer: str) -> tuple[int, str]:
    """Return the result and the handle, in hexadecimal."""
    handle = Handle()
    result = cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(int(pointer)))
    return int(result), bytes(handle).hex()


def ipc_open(text: str, flags: str = "1") -> tuple[int, int]:
    """Return the result and the pointer."""
    pointer, handle = ctypes.c_uint64(), Handle.from_buffer_copy(bytes.fromhex(text))
    result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, int(flags))
    return int(result), pointer.value


def ipc_close(pointer: str) -> int:
    return int(cuda.cuIpcCloseMemHandle(ctypes.c_uint64(int(pointer))))


def range_(pointer: str) -> tuple[int, int, int]:
    """Return the result, the base and the size of what a pointer lies in."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    result = cuda.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(int(pointer))
    )
    return int(result), base.value, size.value


class Outside(ctypes.Structure):
    """`CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, and the description of a buffer in it."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("descriptor", ctypes.c_uint64),
        ("unused", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("rest", ctypes.c_uint * 18),
    )


class Buffer(ctypes.Structure):
    """`CUDA_EXTERNAL_MEMORY_BUFFER_DESC`."""

    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("rest", ctypes.c_uint * 18),
    )


def external(size: str) -> tuple[int, int]:
    """Import as much of another API's memory; return the result and the handle."""
    handle = ctypes.c_void_p()
    file = os.memfd_create("external")
    os.truncate(file, int(size))
    wanted = Outside(1, file, 0, int(size))
    result = cuda.cuImportExternalMemory(ctypes.byref(handle), ctypes.byref(wanted))
    return int(result), handle.value or 0


def external_map(handle: str, offset: str, size: str) -> tuple[int, int]:
    """Return the result and the address of a buffer."""
    pointer, wanted = ctypes.c_uint64(), Buffer(int(offset), int(size))
    result = cuda.cuExternalMemoryGetMappedBuffer(
        ctypes.byref(pointer), ctypes.c_void_p(int(handle)), ctypes.byref(wanted)
    )
    return int(result), pointer.value


def external_end(handle: str) -> int:
    return int(cuda.cuDestroyExternalMemory(ctypes.c_void_p(int(handle))))


def churn_shared(pid: str, descriptor: str) -> None:
    """Answer, then import and export, hold and drop until killed."""
    print(json.dumps("going"), flush=True)
    while True:
        result, theirs = take(pid, descriptor)
        assert result == 0
        result, mine = create(str(64 << 20))
        assert result == 0
        result, file = export(str(mine))
        assert result == 0
        assert take(str(os.getpid()), str(file)) == (0, mine)
        os.close(file)
        assert [release(str(handle)) for handle in (mine, mine, theirs)] == [0, 0, 0]


MORE: dict[str, Callable[..., object]] = {
    "create": create,
    "export": export,
    "import": take,
    "release": release,
    "map": map_,
    "unmap": unmap,
    "handle": handle_of,
    "write": write,
    "read": read,
    "ipc_get": ipc_get,
    "ipc_open": ipc_open,
    "ipc_close": ipc_close,
    "range": range_,
    "external": external,
    "external_map": external_map,
    "external_end": external_end,
    "churn_shared": churn_shared,
}

for line in sys.stdin:
    verb, *arguments = line.split()
    print(json.dumps({**VERBS, **MORE}[verb](*arguments)), flush=True)
