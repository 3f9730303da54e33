# SPDX-License-Identifier: Apache-2.0
"""The driver's figure of a process: kernels, and copies, which run on engines of their own."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare.daemon.cards import nvml_calls

# nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, memUtil, encUtil, decUtil
SAMPLE = struct.Struct("@IQIIII")


def devices(samples: list[bytes], room: int = 4096) -> nvml_calls.Devices:
    """Return the devices of a library that reports `samples`, in an array of `room` bytes."""

    def report(_handle: Any, array: Any, count: Any, since: ctypes.c_ulonglong) -> int:
        newer = [each for each in samples if SAMPLE.unpack(each)[1] > since.value]
        held, count._obj.value = count._obj.value, len(newer)
        if held < len(newer):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        array[: SAMPLE.size * len(newer)] = b"".join(newer)
        return int(pynvml.NVML_SUCCESS if newer else pynvml.NVML_ERROR_NOT_FOUND)

    made = object.__new__(nvml_calls.Devices)
    library: Any = SimpleNamespace(nvmlDeviceGetProcessUtilization=report)
    made._library, made._seen, made._room = library, {}, ctypes.create_string_buffer(room)
    return made


@pytest.mark.parametrize(("kernels", "memory"), [(40, 0), (0, 40), (40, 25), (25, 40)])
def test_copies_count_as_kernels_do(kernels: int, memory: int) -> None:
    calls = devices([SAMPLE.pack(7, 100, 90, 90, 0, 0), SAMPLE.pack(7, 200, kernels, memory, 0, 0)])
    assert calls._shares(None, "GPU-0") == [[7, 40]]


def test_more_samples_than_there_is_room_for_are_asked_for_again() -> None:
    calls = devices([SAMPLE.pack(pid, 100, pid, 0, 0, 0) for pid in range(1, 90)], SAMPLE.size)
    assert calls._shares(None, "GPU-0") == [[pid, pid] for pid in range(1, 90)]


def test_a_sample_that_was_read_is_not_read_again() -> None:
    calls = devices([SAMPLE.pack(7, 100, 40, 0, 0, 0)])
    assert calls._shares(None, "GPU-0") == [[7, 40]]
    assert calls._shares(None, "GPU-0") == []
