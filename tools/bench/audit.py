# SPDX-License-Identifier: Apache-2.0
"""From the moment a container has more than it may until it is frozen.

Alone, and beside a container of 20,000 idle processes that rewrites the records of dead ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from gpushare.config import Timing
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .native import compile_program
from .result import Result
from .turns import BenchError

ROUNDS = 12
CROWD = 20_000
CROWD_SECONDS = 120.0  # until they have ended
SECONDS = 10.0  # by then it is a failure, and no figure
#: The driver itself: what is loaded past the filter is refused nothing.
AROUND = (PROGRAM, "--library", "/.gpushare/driver/libcuda.so.1")
SEEN_MS, FROZEN_MS = 1000.0, 1000.0
LOOK_MS = Timing().sample_interval_seconds * 1e3


def measure() -> Iterator[Result]:
    """Let containers take three times their quota, one after another."""
    with Stack() as stack:
        stack.start_daemon()
        _wait_for(stack, "context-size-measured")
        yield from _results("over its quota", [_round(stack) for _ in range(ROUNDS)])
        with _crowd(stack):
            found = [_round(stack) for _ in range(ROUNDS)]
        yield from _results(f"beside {CROWD:,} processes", found)


def _results(situation: str, found: Sequence[tuple[float, float]]) -> Iterator[Result]:
    for name, index, budget in (("warned", 0, SEEN_MS), ("frozen", 1, FROZEN_MS)):
        taken = sorted(each[index] for each in found)
        value, worst = statistics.median(taken), taken[-1]
        # Without gpushare there is no sample: beside it stands how often gpushare takes one.
        for what, figure in ((f"{situation} until {name}", value), ("  at most", worst)):
            yield Result(what, "ms", figure, LOOK_MS, figure - LOOK_MS, budget, absolute=True)


@contextmanager
def _crowd(stack: Stack) -> Iterator[None]:
    """Have a container of idle processes, whose records are always those of dead ones."""
    program = compile_program("idle_crowd.c", stack.root / "idle_crowd", "-static").read_bytes()
    args = ("/bin/idle_crowd", str(CROWD))
    bundle = Bundle(stack, quota={"memory": "2GiB"}, args=args, files={"/bin/idle_crowd": program})
    with bundle.run() as tenant:
        tenant.start()
        yield
        stack.client.stop(bundle.id, "KILL", 0)
        tenant.process.wait(CROWD_SECONDS)
    bundle.remove()


def _round(stack: Stack) -> tuple[float, float]:
    """Return the milliseconds until one container is warned, and until it is frozen."""
    bundle = Bundle(stack, quota={"memory": "2GiB"}, args=AROUND)
    with bundle.run() as tenant:
        tenant.start()
        if tenant.ask(f"alloc {6 << 30}")["code"] != 0:
            raise BenchError("the driver that is loaded past the filter refused memory")
        begun = time.time()
        warned = _wait_for(stack, "over-quota-warned", id=bundle.id)
        frozen = _wait_for(stack, "tenant-frozen", id=bundle.id)
        # A frozen container does not exit by itself.
        stack.client.stop(bundle.id, "KILL", 0)
        tenant.process.wait(SECONDS)
    bundle.remove()
    return (warned - begun) * 1e3, (frozen - begun) * 1e3


def _wait_for(stack: Stack, event: str, **fields: str) -> float:
    """Return when `event` was logged with such fields, in seconds since the epoch."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for line in stack.events():
            if {"event": event, **fields}.items() <= line.items():
                return datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp()
        time.sleep(0.05)  # the log has the moment: this only finds it
    raise BenchError(f"gpushared did not log {event} within {SECONDS:g} s")
