# SPDX-License-Identifier: Apache-2.0
"""How long after its start gpushared watches every tenant that an earlier one left."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpushare import abi
from tests.stack import Stack

from .idle import tenants
from .result import Result
from .turns import BenchError, Times, take

TENANTS = 16
ROUNDS = 5
PATIENCE_SECONDS = 60.0


def measure() -> Iterator[Result]:
    """Compare with a gpushared that only says its version: with Python, and what it imports."""
    with Stack() as stack:
        stack.start_daemon()
        with tenants(stack, TENANTS):
            series = take(
                {"version": partial(_version, stack), "restart": partial(_restart, stack)}, ROUNDS
            )
    name = f"gpushared killed, until it watches {TENANTS} tenants again"
    yield series.compare("took", "restart", "version", name=name)


def _version(stack: Stack) -> Times:
    begun = time.monotonic_ns()
    subprocess.run([stack.gpushared[0], "--version"], check=True, stdout=subprocess.DEVNULL)
    return {"took": (time.monotonic_ns() - begun) / 1e6}


def _restart(stack: Stack) -> Times:
    """Kill it, start another, and wait until the new one has sampled every tenant."""
    stack.end_daemon()
    grants = list((stack.root / "run" / "tenants").glob(f"*/*/{abi.GRANT_NAME}"))
    grants += (stack.root / "run" / "tenants").glob(f"*/{abi.GRANT_NAME}")
    if len(grants) != TENANTS:
        raise BenchError(f"{len(grants)} of {TENANTS} tenants have pages")
    begun = time.monotonic_ns()
    stack.start_daemon()
    while min(map(_looked_ns, grants)) < begun:
        if time.monotonic_ns() - begun > PATIENCE_SECONDS * 1e9:
            raise BenchError("gpushared did not look at its tenants again")
        time.sleep(0.001)
    return {"took": (time.monotonic_ns() - begun) / 1e6}


def _looked_ns(grant: Path) -> int:
    """Return when the daemon took its last sample, by CLOCK_MONOTONIC."""
    fd = os.open(grant, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int.from_bytes(os.pread(fd, 8, abi.GRANT_HEADER_HEARTBEAT_NS), "little")
    finally:
        os.close(fd)
