# SPDX-License-Identifier: Apache-2.0
"""From the moment a container has more than it may until it is frozen."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from gpushare.client import Client
from gpushare.config import Timing
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .result import Result
from .turns import BenchError

ROUNDS = 12
SECONDS = 10.0  # by then it is a failure, and no figure
#: The driver itself: what is loaded past the filter is refused nothing.
AROUND = (PROGRAM, "--library", "/opt/gpushare/driver/libcuda.so.1")
SEEN_MS, FROZEN_MS = 2000.0, 2000.0
LOOK_MS = Timing().sample * 1e3


def measure() -> Iterator[Result]:
    """Let containers take three times their quota, one after another."""
    with Stack() as stack:
        stack.start_daemon()
        _wait_for(stack, "context-measured", lambda _line: True)
        found = [_round(stack) for _ in range(ROUNDS)]
    for name, index, budget in (("warned", 0, SEEN_MS), ("frozen", 1, FROZEN_MS)):
        taken = sorted(each[index] for each in found)
        value, worst = statistics.median(taken), taken[-1]
        # Without gpushare nobody ever looks: beside it stands how often it does.
        for what, figure in ((f"over its quota until {name}", value), ("  at most", worst)):
            yield Result(what, "ms", figure, LOOK_MS, figure - LOOK_MS, budget, absolute=True)


def _round(stack: Stack) -> tuple[float, float]:
    """Return the milliseconds until one container is warned, and until it is frozen."""
    bundle = Bundle(stack, quota={"memory": "2GiB"}, args=AROUND)
    with bundle.run() as tenant:
        tenant.start()
        if tenant.ask(f"alloc {6 << 30}")["code"] != 0:
            raise BenchError("the driver that is loaded past the filter refused memory")
        begun = time.time()
        warned = _wait_for(
            stack, "over-quota-warned", lambda line: bool(line.get("id") == bundle.id)
        )
        frozen = _wait_for(stack, "tenant-frozen", lambda line: bool(line.get("id") == bundle.id))
        # Whoever is frozen ends by nobody else.
        Client(stack.socket).kick(bundle.id, "KILL", 0)
        tenant.process.wait(SECONDS)
    bundle.remove()
    return (warned - begun) * 1e3, (frozen - begun) * 1e3


def _wait_for(stack: Stack, event: str, is_it: Callable[[dict[str, Any]], bool]) -> float:
    """Return when `event` was logged, in seconds since the epoch."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for text in (stack.root / "gpushared.log").read_text().splitlines():
            line = json.loads(text)
            if line["event"] == event and is_it(line):
                return datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp()
        time.sleep(0.05)  # the log has the moment: this only finds it
    raise BenchError(f"gpushared did not log {event} within {SECONDS:g} s")
