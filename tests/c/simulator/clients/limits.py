# SPDX-License-Identifier: Apache-2.0
"""Sets or prints a cgroup's memory limit on card 0: `set DIRECTORY SOFT HARD`, `get DIRECTORY`."""

from __future__ import annotations

import ctypes
import json
import sys


class Limits(ctypes.Structure):
    """`nvmlGetMemoryLimits_v1_t`, which begins as `nvmlSetMemoryLimits_v1_t` does."""

    _fields_ = (
        ("name_space", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


nvml = ctypes.CDLL("libnvidia-ml.so.1")
handle = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
if sys.argv[1:] == ["names"]:
    # Answer each line with the status of a call that needs nothing but the card.
    text = ctypes.create_string_buffer(96)
    for _ in sys.stdin:
        print(json.dumps(nvml.nvmlDeviceGetName(handle, text, len(text))), flush=True)
    sys.exit()
verb, directory, *numbers = sys.argv[1:]
limits = Limits(directory.encode(), *map(int, numbers))
if verb == "set":
    print(json.dumps(nvml.nvmlDeviceSetMemoryLimits_v1(handle, ctypes.byref(limits))))
else:
    status = nvml.nvmlDeviceGetMemoryLimits_v1(handle, ctypes.byref(limits))
    print(json.dumps([status, limits.soft, limits.hard, limits.used]))
