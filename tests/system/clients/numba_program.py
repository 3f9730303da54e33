# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: copy there and back, ask for more than there is, load a kernel and launch it."""

from __future__ import annotations

import ctypes
import json
import os

import numpy as np

# Its own client of the driver; that by cuda-bindings needs cuda-core as well.
os.environ["NUMBA_CUDA_USE_NVIDIA_BINDING"] = "0"

from numba import cuda
from numba.cuda.cudadrv import driver

PTX = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 duration_ns) { ret; }
"""
KERNEL_MS = 30

context = cuda.current_context()
free, total = context.get_memory_info()
sent = np.random.default_rng(1).integers(0, 256, 3 << 20, dtype=np.uint8)
on_card = cuda.to_device(sent)
received = on_card.copy_to_host()

refused = 0
try:
    cuda.device_array(free, dtype=np.uint8)
except driver.CudaAPIError as error:
    refused = error.code

# Numba compiles by NVVM, and asks for attributes of functions, which the simulator has not.
module, function = context.create_module_ptx(PTX), driver.drvapi.cu_function()
driver.driver.cuModuleGetFunction(ctypes.byref(function), module.handle, b"spin")
stream, start, end = cuda.stream(), cuda.event(), cuda.event()
start.record(stream)
duration = ctypes.c_uint64(KERNEL_MS * 1_000_000)
one = (1, 1, 1)
driver.launch_kernel(function, *one, *one, 0, stream.handle, [duration])
end.record(stream)
end.synchronize()
print(
    json.dumps(
        {
            "total": total,
            "same": bool((sent == received).all()),
            "refused": refused,
            "kernel_ms": KERNEL_MS,
            "elapsed_ms": cuda.event_elapsed_time(start, end),
        }
    )
)
