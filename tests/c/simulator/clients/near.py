# SPDX-License-Identifier: Apache-2.0
"""Prints what NVML says of where the cards are, as gpushared's NVML worker asks it."""

import ctypes
import json
import sys

import pynvml

sys.path.insert(0, sys.argv[1])
from gpushare.daemon.cards import nvml_calls

ctypes.CDLL("libnvidia-ml.so.1", mode=ctypes.RTLD_GLOBAL)
pynvml.nvmlInit()
handles = {}
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    handles[pynvml.nvmlDeviceGetUUID(handle)] = handle
print(json.dumps(nvml_calls.topology_facts(handles)))
