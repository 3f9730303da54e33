# SPDX-License-Identifier: Apache-2.0
"""How a card can be divided into MIG instances, as NVML tells it. As nvml_calls, which asks.

nvml.h: nvmlDeviceGetGpuInstanceProfileInfoV takes the constants NVML_GPU_INSTANCE_PROFILE_...; all
other functions take the number that it returns, which is the one of `nvidia-smi mig -lgip`. The
places of instances are only known of a card in MIG mode.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import pynvml

from gpushare.daemon.cards.nvml_card import NvmlError, NvmlReply, call, parts_of

#: More than the constants of this pynvml: a newer driver may have more kinds of instances.
_KINDS_MOST: Final = 32
_PLACES_MOST: Final = 64
_NO_KIND: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # before CUDA 11.8, kinds have no names
    }
)


def division_of(handle: Any) -> NvmlReply:
    """Return the kinds of instances that a card can have, and those that it has; NvmlError."""
    kinds = [kind for number in range(_KINDS_MOST) if (kind := _kind(handle, number)) is not None]
    is_enabled = parts_of(handle) is not None
    for kind in kinds:
        kind["places"] = _places(handle, kind["id"]) if is_enabled else None
    held = [place for kind in kinds for place in _held(handle, kind["id"])] if is_enabled else []
    return {"enabled": is_enabled, "kinds": kinds, "instances": held}


def _kind(handle: Any, number: int) -> NvmlReply | None:
    """Return one kind of instance, None if the card has none with that constant."""
    try:
        info = call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, 2)
    except NvmlError as error:
        if error.code in _NO_KIND:
            return None
        raise
    name = info.name.decode("utf-8", "replace") if isinstance(info.name, bytes) else info.name
    return {
        "id": int(info.id),
        "name": str(name).removeprefix("MIG "),
        "slices": int(info.sliceCount),
        "count": int(info.instanceCount),
        "multiprocessors": int(info.multiprocessorCount),
        "memory": int(info.memorySizeMB) << 20,
    }


def _places(handle: Any, kind: int) -> list[list[int]]:
    """Return start and size of each place that an instance of a kind can have."""
    room = (pynvml.c_nvmlGpuInstancePlacement_t * _PLACES_MOST)()
    count = ctypes.c_uint(_PLACES_MOST)
    call(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, kind, room, ctypes.byref(count))
    return [[int(one.start), int(one.size)] for one in room[: count.value]]


def _held(handle: Any, kind: int) -> list[NvmlReply]:
    """Return each instance of a kind that the card has."""
    room = (pynvml.c_nvmlGpuInstance_t * _PLACES_MOST)()
    count = ctypes.c_uint(_PLACES_MOST)
    call(pynvml.nvmlDeviceGetGpuInstances, handle, kind, room, ctypes.byref(count))
    held = []
    for instance in room[: count.value]:
        info = call(pynvml.nvmlGpuInstanceGetInfo, instance)
        place = [int(info.placement.start), int(info.placement.size)]
        held.append({"gpu_instance": int(info.id), "kind": kind, "place": place})
    return held
