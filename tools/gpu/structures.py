# SPDX-License-Identifier: Apache-2.0
"""Structures and constants of cuda.h that measuring memory takes; names are the header's."""

from __future__ import annotations

import ctypes

PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT

POOL_RESERVED, POOL_USED = 5, 7  # CU_MEMPOOL_ATTR_...
GRAPH_USED, GRAPH_RESERVED = 0, 2  # CU_GRAPH_MEM_ATTR_..._CURRENT
LIMITS = {"stack": 0, "fifo": 1, "heap": 2}  # CU_LIMIT_...
GRANULARITY = {"minimum": 0, "recommended": 1}  # CU_MEM_ALLOC_GRANULARITY_...
JIT_INPUT_PTX = 1


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Physical(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Pool(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("most_bytes", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


class AllocationNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = (
        ("pool", Pool),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("pointer", ctypes.c_uint64),
    )


class Shape(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


def on_card(card: int) -> Physical:
    """Return the properties of pinned memory on `card`."""
    return Physical(type=PINNED, location=Location(ON_DEVICE, card))
