# SPDX-License-Identifier: Apache-2.0
"""A tenant that keeps the card busy when told to, and counts what it gets done.

    python -m tools.gpu.child.tenant LIBCUDA

`load` says with what: units of work that are alike, queued a batch at a time. Times are
CLOCK_MONOTONIC's nanoseconds, one clock for all tenants of the host.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from tools.gpu.cuda import Cuda

from .conversation import Answer, converse
from .kernels import BLOCKS_PER_MULTIPROCESSOR, THREADS

BATCH_NS = 1_000_000  # of work between two looks at what is done
IN_FLIGHT = 8  # batches: the card has work while this process waits for a processor
BLOCKING_UNTIMED = 3  # CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
CAPTURE_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class BatchLoad(Protocol):
    """Work of one kind; `units` are in a batch."""

    units: int

    def queue(self) -> None:
        """Queue a batch behind what is queued."""

    def mark(self) -> Any:
        """Return what `wait` takes to wait for all that is queued now."""

    def wait(self, mark: Any) -> None:
        """Wait, asleep, until that is done."""


class TimedKernels:
    """Kernels that take `duration_ns` of the card each, launched one by one."""

    def __init__(self, cuda: Cuda, duration_ns: str, rounds: str) -> None:
        self.cuda = cuda
        cuda.use_context()
        self.stream = ctypes.c_void_p()
        cuda.call("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)
        self.function = cuda.function("work")
        self.arguments = int(duration_ns), int(rounds), cuda.allocate(8)
        self.blocks = cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR
        self.units = max(1, BATCH_NS // int(duration_ns))
        self.spare: list[ctypes.c_void_p] = []

    def queue(self) -> None:
        for _ in range(self.units):
            self.launch()

    def launch(self) -> None:
        self.cuda.launch(self.function, self.arguments, self.blocks, THREADS, self.stream)

    def mark(self) -> ctypes.c_void_p:
        event = self.spare.pop() if self.spare else self._event()
        self.cuda.call("cuEventRecord", event, self.stream)
        return event

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.cuda.call("cuEventCreate", ctypes.byref(event), BLOCKING_UNTIMED)
        return event

    def wait(self, mark: ctypes.c_void_p) -> None:
        self.cuda.call("cuEventSynchronize", mark)
        self.spare.append(mark)


class Graphs(TimedKernels):
    """A graph of `nodes` such kernels, replayed: one unit is one replay."""

    def __init__(self, cuda: Cuda, duration_ns: str, rounds: str, nodes: str) -> None:
        super().__init__(cuda, duration_ns, rounds)
        self.launch()  # loads the kernel, which a capture cannot
        cuda.synchronize()
        graph, self.replayed = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuStreamBeginCapture_v2", self.stream, CAPTURE_THREAD)
        for _ in range(int(nodes)):
            self.launch()
        cuda.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        flags = ctypes.c_ulonglong(0)
        cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(self.replayed), graph, flags)
        cuda.call("cuGraphDestroy", graph)
        self.units = max(1, BATCH_NS // (int(duration_ns) * int(nodes)))

    def queue(self) -> None:
        for _ in range(self.units):
            self.cuda.call("cuGraphLaunch", self.replayed, self.stream)


class Training:
    """Steps of a small network's training by PyTorch: one unit is one step."""

    units = 1

    def __init__(self, _cuda: Cuda, width: str = "4096", rows: str = "8192") -> None:
        self.torch: Any = import_module("torch")
        nn = self.torch.nn
        layers = [nn.Linear(int(width), int(width)), nn.ReLU(), nn.Linear(int(width), 10)]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = self.torch.optim.Adam(self.model.parameters())
        self.given = self.torch.randn(int(rows), int(width), device="cuda")
        self.wanted = self.torch.randint(10, (int(rows),), device="cuda")

    def queue(self) -> None:
        self.optimizer.zero_grad()
        made = self.model(self.given)
        self.torch.nn.functional.cross_entropy(made, self.wanted).backward()
        self.optimizer.step()

    def mark(self) -> Any:
        event = self.torch.cuda.Event(blocking=True)
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        mark.synchronize()


KINDS: dict[str, Callable[..., BatchLoad]] = {
    "kernels": TimedKernels,
    "graphs": Graphs,
    "training": Training,
}


class TenantWorker:
    """The options of one process; its load is the one that was made last."""

    def __init__(self, library: str) -> None:
        self.cuda = Cuda(library)
        self.loaded: Any = None  # a BatchLoad

    def load(self, kind: str, *words: str) -> Answer:
        """Make the load `kind`, and do a batch of it, so that nothing is left to be loaded."""
        self.loaded = made = KINDS[kind](self.cuda, *words)
        made.queue()
        made.wait(made.mark())
        return {"units": made.units}

    def work(self, begin_ns: str, seconds: str) -> Answer:
        """Work from `begin_ns` on; return how many units were done when, batch by batch."""
        load, flying, done = self.loaded, deque[Any](), 0
        end = int(begin_ns) + int(float(seconds) * 1e9)
        log: list[tuple[int, int]] = []
        _sleep_until(int(begin_ns))
        while time.monotonic_ns() < end:
            load.queue()
            flying.append(load.mark())
            if len(flying) == IN_FLIGHT:
                load.wait(flying.popleft())
                done += load.units
                log.append((time.monotonic_ns(), done))
        for mark in flying:
            load.wait(mark)
        return {"log": log}

    def serve(self, begin_ns: str, seconds: str, rate: str, batches: str) -> Answer:
        """Answer `rate` requests per second of so many batches each; return the ns each took.

        They come at random moments, the same in each run.
        """
        load, drawn = self.loaded, random.Random(1)
        arrives, end = int(begin_ns), int(begin_ns) + int(float(seconds) * 1e9)
        took: list[int] = []
        while (arrives := arrives + int(drawn.expovariate(float(rate)) * 1e9)) < end:
            _sleep_until(arrives)
            for _ in range(int(batches)):
                load.queue()
            load.wait(load.mark())
            took.append(time.monotonic_ns() - arrives)
        return {"took_ns": took}


def _sleep_until(moment_ns: int) -> None:
    if (left := moment_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


if __name__ == "__main__":
    converse(TenantWorker(sys.argv[1]))
