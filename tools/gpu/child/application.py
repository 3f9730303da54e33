# SPDX-License-Identifier: Apache-2.0
"""One application as an ordinary user starts it: python -m tools.gpu.child.application NAME [fill].

It prints an object: `total`, the memory of the card that it sees; `result`, of a small piece of
work; with `fill` also `refused`, what it says when there is no more memory. Where it is not here,
it prints `missing`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

CHUNK_BYTES = 64 << 20
CHUNKS = 1 << 14  # a terabyte: more than any card has


def _filled(allocate: Callable[[], object]) -> str:
    """Allocate until it is refused, and return the words; nothing unless that is asked for."""
    held: list[object] = []
    if sys.argv[2:] != ["fill"]:
        return ""
    try:
        for _ in range(CHUNKS):
            held.append(allocate())  # noqa: PERF401 - what was allocated is held until then
    except Exception as error:  # noqa: BLE001 - each application has its own
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def pytorch(torch: Any) -> dict[str, object]:
    ramp = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
    return {
        "total": torch.cuda.mem_get_info()[1],
        "result": float((ramp * 3).sum()),
        "refused": _filled(lambda: torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda")),
    }


def cupy(cupy: Any) -> dict[str, object]:
    return {
        "total": cupy.cuda.runtime.memGetInfo()[1],
        "result": float((cupy.arange(1 << 20, dtype="float64") * 3).sum()),
        "refused": _filled(lambda: cupy.empty(CHUNK_BYTES, dtype="uint8")),
    }


def numba(cuda: Any) -> dict[str, object]:
    import numpy as np  # noqa: PLC0415 - only this one needs it

    there = cuda.to_device(np.arange(1 << 20, dtype="float64") * 3)
    return {
        "total": int(cuda.current_context().get_memory_info()[1]),
        "result": float(there.copy_to_host().sum()),
        "refused": _filled(lambda: cuda.device_array(CHUNK_BYTES, dtype="uint8")),
    }


def jax(jax: Any) -> dict[str, object]:
    """It takes three quarters of the memory at its start, and tells how much that is."""
    device = jax.devices("cuda")[0]
    zeros = jax.numpy.zeros
    return {
        "total": device.memory_stats()["bytes_limit"],
        "result": float((jax.numpy.arange(1 << 20, dtype="float32") * 3).sum()),
        "refused": _filled(lambda: zeros(CHUNK_BYTES, dtype="uint8").block_until_ready()),
    }


def tensorflow(tf: Any) -> dict[str, object]:
    """It takes nearly all memory at its start, and does not tell how much that is."""
    with tf.device("/GPU:0"):
        return {
            "total": None,
            "result": float(tf.reduce_sum(tf.range(1 << 20, dtype="float64") * 3)),
            "refused": _filled(lambda: tf.zeros([CHUNK_BYTES // 4]) + 1),
        }


def paddle(paddle: Any) -> dict[str, object]:
    ramp = paddle.arange(1 << 20, dtype="float64")
    return {
        "total": paddle.device.cuda.get_device_properties().total_memory,
        "result": float((ramp * 3).sum()),
        "refused": _filled(lambda: paddle.empty([CHUNK_BYTES], dtype="uint8")),
    }


#: By name: what is imported, and what is done with it.
APPLICATIONS: dict[str, tuple[str, Callable[[Any], dict[str, object]]]] = {
    "PyTorch": ("torch", pytorch),
    "CuPy": ("cupy", cupy),
    "numba": ("numba.cuda", numba),
    "JAX": ("jax", jax),
    "TensorFlow": ("tensorflow", tensorflow),
    "Paddle": ("paddle", paddle),
}


def main() -> None:
    module, function = APPLICATIONS[sys.argv[1]]
    try:
        library = import_module(module)
    except (ImportError, OSError) as error:
        answer: dict[str, object] = {"missing": str(error)}
    else:
        answer = function(library)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
