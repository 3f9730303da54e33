# SPDX-License-Identifier: Apache-2.0
"""What PyTorch sees and does, as one JSON object: an ordinary program that knows of no quota.

Each check is on its own: a key that is missing has its reason in `errors`.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

CHUNK_BYTES = 64 << 20
CHUNKS = 1 << 14  # a terabyte: more than any card has


def view(torch: Any) -> object:
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    return {
        "free": free,
        "total": total,
        "total_memory": properties.total_memory,
        "devices": torch.cuda.device_count(),
        "name": properties.name,
        "backend": torch.cuda.get_allocator_backend(),
    }


def matmul(torch: Any) -> object:
    """The relative error of a product on the card against the host's in double precision."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seen = (left.cuda() @ right.cuda()).cpu().double()
    exact = left.double() @ right.double()
    return float((seen - exact).norm() / exact.norm())


def graph(torch: Any) -> object:
    """Whether a captured graph, replayed on new input, computes what it was captured from."""
    given = torch.ones(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        given * 2 + 1  # what capture must not do the first time: load kernels, take memory
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        made = given * 2 + 1
    given.fill_(20)
    recorded.replay()
    torch.cuda.synchronize()
    return bool((made == 41).all())


def full(torch: Any) -> object:
    """Allocate until it is refused: what was allocated, the refusing function, and its message."""
    held: list[Any] = []
    answer: dict[str, object] = {"error": "", "message": ""}
    try:
        for _ in range(CHUNKS):
            held.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda"))  # noqa: PERF401
    except RuntimeError as error:
        answer = {"error": type(error).__name__, "message": str(error).splitlines()[0]}
        answer["is_out_of_memory"] = isinstance(error, torch.cuda.OutOfMemoryError)
    answer["reserved"] = torch.cuda.memory_reserved()
    answer["given"] = len(held) * CHUNK_BYTES
    answer["free"] = torch.cuda.mem_get_info()[0]
    held.clear()
    torch.cuda.empty_cache()
    answer["free_after"] = torch.cuda.mem_get_info()[0]
    torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    return answer


def retry(torch: Any) -> object:
    """Cache nearly everything in small pieces, then ask for one that only they together make room
    for; then for more than there is, and once more for one that fits."""
    free, _ = torch.cuda.mem_get_info()
    count = max(2, int(free * 0.9) // CHUNK_BYTES)
    held = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(count)]
    held.clear()
    answer: dict[str, object] = {"cached": torch.cuda.memory_reserved()}
    asked = (count - 1) * CHUNK_BYTES
    answer |= {"asked": asked, "given": _gets(torch, asked)}
    answer["beyond"] = _gets(torch, 2 * free)
    answer["after"] = _gets(torch, CHUNK_BYTES)
    torch.cuda.empty_cache()
    return answer


def _gets(torch: Any, size: int) -> bool:
    try:
        made = torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return False
    made.fill_(1)
    torch.cuda.synchronize()
    return True


def captured(torch: Any) -> object:
    """Capture graphs that allocate until one is refused: what they hold, and what works then.

    Not with cudaMallocAsync: PyTorch 2.11 aborts when it frees what a graph was captured with.
    """
    if torch.cuda.get_allocator_backend() != "native":
        return None
    free_before = torch.cuda.mem_get_info()[0]
    made: list[tuple[Any, Any]] = []
    answer: dict[str, object] = {"is_out_of_memory": False, "error": ""}
    size = max(CHUNK_BYTES, free_before // 8)
    for _ in range(16):
        recorded = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(recorded):
                kept = torch.ones(size, dtype=torch.uint8, device="cuda")
            recorded.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:  # of the capture's end, where memory was refused within it
            said = f"{error} {error.__context__ or ''}"
            answer |= {"is_out_of_memory": "out of memory" in said.lower(), "error": said[:300]}
            break
        made.append((recorded, kept))
    answer |= {"graphs": len(made), "reserved": torch.cuda.memory_reserved()}
    answer["held"] = free_before - torch.cuda.mem_get_info()[0]
    for recorded, _ in made:
        recorded.replay()
    torch.cuda.synchronize()
    answer["replays"] = bool(made) and all(int(kept[:64].sum()) == 64 for _, kept in made)
    recorded = kept = None
    made.clear()
    gc.collect()  # the refused capture: its exception refers to it in a circle
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    answer["recovers"] = torch.cuda.mem_get_info()[0] > free_before - size
    return answer


def version(torch: Any) -> object:
    return {"torch": torch.__version__, "cuda": torch.version.cuda}


CHECKS: dict[str, Callable[[Any], object]] = {
    "version": version,
    "view": view,
    "matmul": matmul,
    "graph": graph,
    "full": full,
    "retry": retry,
    "captured": captured,
}


def main() -> None:
    errors: dict[str, str] = {}
    try:
        torch = import_module("torch")  # most machines have none, and that is an answer
    except (ImportError, OSError) as error:
        sys.stdout.write(json.dumps({"errors": {"torch": str(error)}}) + "\n")
        return
    answer: dict[str, object] = {"torch": torch.__version__}
    for name in sys.argv[1:] or CHECKS:
        try:
            answer[name] = CHECKS[name](torch)
        except Exception as error:  # noqa: BLE001 - a failed check is an answer too
            errors[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    answer["errors"] = errors
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
