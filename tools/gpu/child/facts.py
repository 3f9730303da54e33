# SPDX-License-Identifier: Apache-2.0
"""Prints, as one JSON object, what a driver says of itself and its first card.

python -m tools.gpu.child.facts LIBCUDA LIBNVIDIA-ML
"""

from __future__ import annotations

import ctypes
import json
import sys

from tools.gpu.cuda import Cuda, CudaError

UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
VERSION_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE


class NvmlCallError(RuntimeError):
    """A function of NVML did not succeed."""


def uuid(cuda: Cuda) -> str:
    """Return the card's UUID as NVML writes it. CUDA's order of cards need not be NVML's."""
    raw = (ctypes.c_ubyte * 16)()
    cuda.call("cuDeviceGetUuid", raw, cuda.device)
    text = bytes(raw).hex()
    cuts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return "GPU-" + "-".join(text[start:end] for start, end in cuts)


def driver_version(path: str) -> str:
    nvml = ctypes.CDLL(path)
    text = ctypes.create_string_buffer(VERSION_BYTES)
    for name, *arguments in (
        ("nvmlInit_v2",),
        ("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text))),
    ):
        code = getattr(nvml, str(name))(*arguments)
        if code:
            raise NvmlCallError(f"{name}: {code}")
    return text.value.decode(errors="replace")


def main() -> None:
    facts: dict[str, object] = {}
    try:
        cuda = Cuda(sys.argv[1])
        facts["model"] = cuda.name
        facts["uuid"] = uuid(cuda)
        facts["cuda_version"] = cuda.version
        facts["total_bytes"] = cuda.total_bytes
        facts["multiprocessors"] = cuda.multiprocessors
    except (OSError, CudaError, AttributeError) as error:
        facts["error"] = str(error)
    try:
        facts["driver_version"] = driver_version(sys.argv[2])
    except (OSError, NvmlCallError, AttributeError) as error:
        facts["driver_version"] = f"unknown: {error}"
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
