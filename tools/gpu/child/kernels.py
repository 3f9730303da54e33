# SPDX-License-Identifier: Apache-2.0
"""Prints, as a JSON list, how many rounds of ../kernels/work.ptx keep a card busy for how long.

    python -m tools.gpu.child.kernels LIBCUDA NANOSECONDS...

One number for each duration. Times are CLOCK_MONOTONIC's.
"""

from __future__ import annotations

import json
import sys
import time

from tools.gpu.cuda import Cuda

THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 2
BATCH = 16


def rounds_for(cuda: Cuda, wanted_ns: int) -> int:
    """Return the rounds for which one kernel keeps the whole card for `wanted_ns`."""
    function, result = cuda.function("work"), cuda.allocate(8)
    blocks = cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR

    def took_ns(rounds: int, times: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(times):
            cuda.launch(function, (wanted_ns, rounds, result), blocks, THREADS)
        cuda.synchronize()
        return (time.perf_counter_ns() - start) / times

    rounds = 1000
    took_ns(rounds, 2)  # the first launch loads the kernel
    for _ in range(20):
        took = min(took_ns(rounds, BATCH) for _ in range(3))
        if took >= wanted_ns / 2:
            return max(1, round(rounds * wanted_ns / took))
        rounds *= 2
    raise RuntimeError(f"{rounds} rounds of work take no more than {took:.0f} ns")


def main() -> None:
    cuda = Cuda(sys.argv[1])
    cuda.use_context()
    found = {"rounds": [rounds_for(cuda, int(wanted)) for wanted in sys.argv[2:]]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
