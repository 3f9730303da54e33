# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: arrays on the device, copied there and back, between each other and in part."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

# Puts numba-cuda in the place of numba.cuda; ./dev keeps it out of every other Python.
importlib.import_module("_numba_cuda_redirector")
cuda = importlib.import_module("numba.cuda")

sent: Any = np.arange(1 << 18, dtype=np.float32)
there = cuda.to_device(sent)
other = cuda.device_array_like(sent)
other.copy_to_device(there)
pinned = cuda.pinned_array(1000, dtype=np.int32)
pinned[:] = 7
stream = cuda.stream()
from_pinned = cuda.to_device(pinned, stream=stream)
stream.synchronize()
managed = cuda.managed_array(100, dtype=np.int64)
managed[:] = 3
free, total = cuda.current_context().get_memory_info()
print(
    json.dumps(
        {
            "same": bool((other.copy_to_host() == sent).all()),
            "part": other[10:13].copy_to_host().tolist(),
            "pinned": int(from_pinned.copy_to_host().sum()),
            "managed": int(managed.sum()),
            "free": free,
            "total": total,
        }
    )
)
