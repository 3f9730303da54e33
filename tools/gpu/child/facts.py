# SPDX-License-Identifier: Apache-2.0
"""Prints, as one JSON object, what a driver says of itself and its first card.

python -m tools.gpu.child.facts LIBCUDA
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid

import pynvml

from tools.gpu.cuda import Cuda, CudaError


def main() -> None:
    facts: dict[str, object] = {}
    try:
        cuda = Cuda(sys.argv[1])
        raw = (ctypes.c_ubyte * 16)()  # CUDA's order of cards need not be NVML's
        cuda.call("cuDeviceGetUuid", raw, cuda.device)
        facts |= {"model": cuda.name, "uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}"}
        facts |= {"cuda_version": cuda.version, "multiprocessors": cuda.multiprocessors}
        facts |= dict.fromkeys(("total_bytes", "free_bytes"), cuda.total_bytes)
    except (OSError, CudaError, AttributeError) as error:
        facts["error"] = str(error)
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        facts["version"] = version.decode() if isinstance(version, bytes) else version
        card = pynvml.nvmlDeviceGetHandleByUUID(str(facts.get("uuid")))
        facts["free_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(card).free
    except pynvml.NVMLError as error:
        facts.setdefault("version", f"unknown: {error}")
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
