# SPDX-License-Identifier: Apache-2.0
"""Runs the kernels of ../kernels when told to, and answers with what they logged or how long.

Times are CLOCK_MONOTONIC's nanoseconds, except in a trace, whose clock is the card's.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.gpu.cuda import NOT_READY, Cuda, CudaError

from .conversation import Answer, converse

LOG_HEADER_WORDS = 5
LOG_JUMPS = 4096
THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 2
BATCH = 16
BLOCKING_UNTIMED = 3  # CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
FLAG_DEADLINE_SECONDS = 5.0


class Kernels:
    def __init__(self, library: str) -> None:
        self.cuda = Cuda(library)
        self.full = self.cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR

    def context(self) -> Answer:
        self.cuda.use_context()
        return {"multiprocessors": self.cuda.multiprocessors}

    def trace(self, duration_ns: str, gap_ns: str, whole: str) -> Answer:
        """Watch the card's clock for `duration_ns`; `whole` 1 keeps every multiprocessor busy."""
        self.cuda.use_context()
        function = self.cuda.function("trace")
        log = self.cuda.allocate(8 * (LOG_HEADER_WORDS + 2 * LOG_JUMPS))
        self.cuda.synchronize()
        blocks, threads = (self.full, THREADS) if whole == "1" else (1, 1)
        arguments = (int(duration_ns), log, LOG_JUMPS, int(gap_ns))
        self.cuda.launch(function, arguments, blocks, threads)
        self.cuda.synchronize()
        jumps, first, last, looks, least = self.cuda.words(log, LOG_HEADER_WORDS)
        kept = min(jumps, LOG_JUMPS)
        words = self.cuda.words(log + 8 * LOG_HEADER_WORDS, 2 * kept) if kept else []
        pairs = list(zip(words[::2], words[1::2], strict=True))
        return {
            "jumps": jumps,
            "first": first,
            "last": last,
            "looks": looks,
            "least_step_ns": least,
            "log": pairs,
        }

    def calibrate(self, wanted_ns: str) -> Answer:
        """Return the rounds for which one kernel of `work` keeps the whole card for `wanted_ns`."""
        self.cuda.use_context()
        work = _Work(self.cuda, self.full)
        rounds = 1000
        work.time(rounds, 2)  # the first launch loads the kernel
        for _ in range(20):
            took = min(work.time(rounds, BATCH) for _ in range(3)) / BATCH
            if took >= int(wanted_ns) / 2:
                return {"rounds": max(1, round(rounds * int(wanted_ns) / took)), "took_ns": took}
            rounds *= 2
        raise RuntimeError(f"{rounds} rounds of work take no more than {took:.0f} ns")

    def work(self, rounds: str, seconds: str, contexts: str) -> Answer:
        """Keep `contexts` contexts, a thread each, busy for `seconds`; kernels done per second."""
        with ThreadPoolExecutor(int(contexts)) as pool:
            turns = [
                pool.submit(self._busy, int(rounds), float(seconds), int(contexts) > 1)
                for _ in range(int(contexts))
            ]
            return {"rates": [turn.result() for turn in turns]}

    def record(self, batch: str, batches: str) -> Answer:
        """Return what recording an event costs the caller, and what an empty call does."""
        self.cuda.use_context()
        event, version = self.cuda.event(), ctypes.byref(ctypes.c_int())
        calls: dict[str, Callable[[], None]] = {
            "record_ns": lambda: self.cuda.call("cuEventRecord", event, None),
            "empty_ns": lambda: self.cuda.call("cuDriverGetVersion", version),
        }
        return self._costs(calls, int(batch), int(batches))

    def _costs(self, calls: Mapping[str, Callable[[], None]], batch: int, batches: int) -> Answer:
        return {
            name: min(self._cost(call, batch) for _ in range(batches))
            for name, call in calls.items()
        }

    def _cost(self, call: Callable[[], None], batch: int) -> float:
        call()
        self.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(batch):
            call()
        took = time.perf_counter_ns() - start
        self.cuda.synchronize()
        return took / batch

    def drain(self, rounds: str, times: str) -> Answer:
        """Return how much longer a kernel takes when the host waits for each before the next."""
        self.cuda.use_context()
        work = _Work(self.cuda, self.full)
        work.time(int(rounds), 2)
        queued = work.time(int(rounds), int(times)) / int(times)
        waited = statistics.median(work.time(int(rounds), 1) for _ in range(int(times)))
        return {"queued_ns": queued, "waited_ns": waited}

    def visible(self, duration_ns: str, times: str) -> Answer:
        """Return how long after a kernel's last store its event is seen done, and the store."""
        self.cuda.use_context()
        function, event = self.cuda.function("flag"), self.cuda.event()
        address = self.cuda.allocate_host(8)
        flag = ctypes.c_uint64.from_address(address)
        flag.value = 0
        lags = []
        for value in range(1, int(times) + 1):
            self.cuda.launch(function, (int(duration_ns), address, value))
            self.cuda.call("cuEventRecord", event, None)
            lags.append(self._lag(flag, value, event))
        return {"lags_ns": lags}

    def _lag(self, flag: ctypes.c_uint64, value: int, event: ctypes.c_void_p) -> int:
        deadline = time.monotonic() + FLAG_DEADLINE_SECONDS
        while flag.value != value:
            if time.monotonic() > deadline:
                raise RuntimeError("the kernel's flag never reached the host")
        raised = time.perf_counter_ns()
        while (code := self.cuda.try_call("cuEventQuery", event)) == NOT_READY:
            pass
        if code:
            raise CudaError("cuEventQuery", code, self.cuda.error_name(code))
        return time.perf_counter_ns() - raised

    def _busy(self, rounds: int, seconds: float, own_context: bool) -> float:
        if own_context:
            self.cuda.make_context()
        else:
            self.cuda.use_context()
        return _Work(self.cuda, self.full).rate(rounds, seconds)


class _Work:
    """The kernel `work` on the whole card, in this thread's context."""

    def __init__(self, cuda: Cuda, blocks: int) -> None:
        self.cuda = cuda
        self.function = cuda.function("work")
        self.result = cuda.allocate(8)
        self.blocks = blocks

    def queue(self, rounds: int, times: int) -> None:
        for _ in range(times):
            self.cuda.launch(self.function, (rounds, self.result), self.blocks, THREADS)

    def time(self, rounds: int, times: int) -> float:
        start = time.perf_counter_ns()
        self.queue(rounds, times)
        self.cuda.synchronize()
        return time.perf_counter_ns() - start

    def rate(self, rounds: int, seconds: float) -> float:
        """Return kernels per second, with a batch always queued behind the one that runs."""
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self.cuda.call("cuEventCreate", ctypes.byref(event), BLOCKING_UNTIMED)
        self.time(rounds, 1)
        start = time.perf_counter_ns()
        batches = 0
        while time.perf_counter_ns() - start < seconds * 1e9 or batches < 2:
            if batches >= 2:
                self.cuda.call("cuEventSynchronize", events[batches % 2])
            self.queue(rounds, BATCH)
            self.cuda.call("cuEventRecord", events[batches % 2], None)
            batches += 1
        self.cuda.synchronize()
        return batches * BATCH / ((time.perf_counter_ns() - start) / 1e9)


def main() -> None:
    kernels = Kernels(sys.argv[1])
    names = ("context", "trace", "calibrate", "work", "record", "drain", "visible")
    converse({name: getattr(kernels, name) for name in names})


if __name__ == "__main__":
    main()
