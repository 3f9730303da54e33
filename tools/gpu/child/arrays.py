# SPDX-License-Identifier: Apache-2.0
"""What CuPy sees and does, as one JSON object: an ordinary program that knows of no quota.

    python -m tools.gpu.child.arrays [pool|async|version ...]

Each check is on its own: a key that is missing has its reason in `errors`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

CHUNK_BYTES = 64 << 20
CHUNKS = 1 << 14  # a terabyte: more than any card has


def version(cupy: Any) -> object:
    return {"cupy": cupy.__version__, "runtime": cupy.cuda.runtime.runtimeGetVersion()}


def pool(cupy: Any) -> object:
    """CuPy's own pool, which takes by cudaMalloc: fill it, be refused, empty it, take again."""
    made = cupy.cuda.MemoryPool()
    return _full(cupy, made, made.free_all_blocks)


def stream_ordered(cupy: Any) -> object:
    """The driver's pool (cudaMallocAsync), which keeps nothing that was waited for."""
    made = cupy.cuda.MemoryAsyncPool()
    return _full(cupy, made, made.free_all_blocks)


def _full(cupy: Any, made: Any, empty: Callable[[], None]) -> dict[str, object]:
    with cupy.cuda.using_allocator(made.malloc):
        info = cupy.cuda.runtime.memGetInfo
        _, total = info()
        held: list[Any] = []
        answer: dict[str, object] = {"error": "", "message": "", "total": total}
        try:
            for _ in range(CHUNKS):
                held.append(cupy.zeros(CHUNK_BYTES, dtype=cupy.uint8))  # noqa: PERF401
        except Exception as error:  # noqa: BLE001 - which one it is is what is asked
            answer |= {"error": type(error).__name__, "message": str(error).splitlines()[0]}
            refused = (cupy.cuda.memory.OutOfMemoryError, MemoryError)
            answer["is_out_of_memory"] = isinstance(error, refused)
        answer["given"] = len(held) * CHUNK_BYTES
        answer["reserved"] = made.total_bytes()
        answer["free"] = info()[0]
        held.clear()
        cupy.cuda.Device().synchronize()
        empty()
        answer["free_after"] = info()[0]
        again = cupy.ones(CHUNK_BYTES, dtype=cupy.uint8)
        answer["again"] = int(again[:1024].sum()) == 1024
        return answer


CHECKS: dict[str, Callable[[Any], object]] = {
    "version": version,
    "pool": pool,
    "async": stream_ordered,
}


def main() -> None:
    errors: dict[str, str] = {}
    try:
        cupy = import_module("cupy")  # most machines have none, and that is an answer
    except (ImportError, OSError) as error:
        sys.stdout.write(json.dumps({"errors": {"cupy": str(error)}}) + "\n")
        return
    answer: dict[str, object] = {"cupy": cupy.__version__}
    for name in sys.argv[1:] or CHECKS:
        try:
            answer[name] = CHECKS[name](cupy)
        except Exception as error:  # noqa: BLE001 - a failed check is an answer too
            errors[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    answer["errors"] = errors
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
