# SPDX-License-Identifier: Apache-2.0
"""Runs the kernels of ../kernels when told to, and answers with what they logged or how long.

Times are CLOCK_MONOTONIC's nanoseconds, except in a trace, whose clock is the card's.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tools.gpu.cuda import NOT_READY, Cuda, CudaError

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
        wanted = int(wanted_ns)
        work = self._work(wanted, 1000)
        work.time(2)  # the first launch loads the kernel
        for _ in range(20):
            took = min(work.time(BATCH) for _ in range(3)) / BATCH
            if took >= wanted / 2:
                return {"rounds": max(1, round(work.rounds * wanted / took)), "took_ns": took}
            work.rounds *= 2
        raise RuntimeError(f"{work.rounds} rounds of work take no more than {took:.0f} ns")

    def work(self, duration_ns: str, rounds: str, seconds: str, contexts: str) -> Answer:
        """Keep `contexts` contexts, a thread each, busy for `seconds`; kernels done per second."""
        arguments = int(duration_ns), int(rounds), float(seconds), int(contexts) > 1
        with ThreadPoolExecutor(int(contexts)) as pool:
            turns = [pool.submit(self._busy, *arguments) for _ in range(int(contexts))]
            return {"rates": [turn.result() for turn in turns]}

    def relay(self, given: str, passed: str, turns: str, kernels: str, *load: str) -> Answer:
        """Take `turns` turns of `kernels` kernels; a byte in FIFO `given` begins one, and a byte
        in `passed` tells that the card is done with it."""
        self.cuda.use_context()
        work = self._work(*map(int, load))
        work.time(1)
        event = self.cuda.event()
        begin, end = (os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in (given, passed))
        began = []
        try:
            for _ in range(int(turns)):
                os.read(begin, 1)
                began.append(time.monotonic_ns())
                work.queue(int(kernels))
                self.cuda.call("cuEventRecord", event, None)
                self.cuda.call("cuEventSynchronize", event)
                os.write(end, b".")
        finally:
            os.close(begin)
            os.close(end)
        return {"began_ns": began[0], "ended_ns": time.monotonic_ns()}

    def batch(self, duration_ns: str, rounds: str, times: str) -> Answer:
        """Return what one kernel takes of `times` that are queued one behind the other."""
        self.cuda.use_context()
        work = self._work(int(duration_ns), int(rounds))
        work.time(1)
        return {"kernel_ns": work.time(int(times)) / int(times)}

    def drain(self, duration_ns: str, rounds: str, times: str) -> Answer:
        """Return how much longer a kernel takes when the host waits for each before the next."""
        self.cuda.use_context()
        work = self._work(int(duration_ns), int(rounds))
        work.time(2)
        queued = work.time(int(times)) / int(times)
        waited = statistics.median(work.time(1) for _ in range(int(times)))
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

    def _busy(self, duration_ns: int, rounds: int, seconds: float, own_context: bool) -> float:
        if own_context:
            self.cuda.make_context()
        else:
            self.cuda.use_context()
        return self._work(duration_ns, rounds).rate(seconds)

    def _work(self, duration_ns: int, rounds: int) -> _Work:
        return _Work(self.cuda, self.full, duration_ns, rounds)


class _Work:
    """The kernel `work` on the whole card, in this thread's context."""

    def __init__(self, cuda: Cuda, blocks: int, duration_ns: int, rounds: int) -> None:
        self.cuda = cuda
        self.function = cuda.function("work")
        self.duration_ns = duration_ns
        self.rounds = rounds
        self.result = cuda.allocate(8)
        self.blocks = blocks

    def queue(self, times: int) -> None:
        arguments = self.duration_ns, self.rounds, self.result
        for _ in range(times):
            self.cuda.launch(self.function, arguments, self.blocks, THREADS)

    def time(self, times: int) -> float:
        start = time.perf_counter_ns()
        self.queue(times)
        self.cuda.synchronize()
        return time.perf_counter_ns() - start

    def rate(self, seconds: float) -> float:
        """Return kernels per second, with a batch always queued behind the one that runs."""
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self.cuda.call("cuEventCreate", ctypes.byref(event), BLOCKING_UNTIMED)
        self.time(1)
        start = time.perf_counter_ns()
        batches = 0
        while time.perf_counter_ns() - start < seconds * 1e9 or batches < 2:
            if batches >= 2:
                self.cuda.call("cuEventSynchronize", events[batches % 2])
            self.queue(BATCH)
            self.cuda.call("cuEventRecord", events[batches % 2], None)
            batches += 1
        self.cuda.synchronize()
        return batches * BATCH / ((time.perf_counter_ns() - start) / 1e9)


if __name__ == "__main__":
    converse(Kernels(sys.argv[1]))
