# SPDX-License-Identifier: Apache-2.0
"""What gpushared, its scheduler and its NVML worker take of a node where 50 tenants do nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .result import Result
from .turns import BenchError

TENANTS = 50  # of one card, which has as many shares for once
SECONDS = 20.0
SETTLE_SECONDS = 5.0  # the driver's figures are held against four looks
MOST_PERCENT = 0.5
MOST_MIB = 90.0
#: By the names of processes as the kernel cuts them.
SCHEDULER = "gpushare-schedu"


@dataclass(frozen=True)
class Taken:
    """Of one core in percent, and resident memory in MiB (RSS, so what is shared counts twice)."""

    percent: float
    mib: float


def measure() -> Iterator[Result]:
    """Compare with the same processes while there is no tenant."""
    with Stack() as stack:
        with stack.config.open("a") as settings:
            settings.write(f"max_tenants: {TENANTS}\n")
        daemon = stack.start_daemon()
        Client(stack.socket).status()
        alone = _taken(daemon.process.pid)
        with tenants(stack, TENANTS):
            if SCHEDULER not in map(_comm, _processes(daemon.process.pid)):
                raise BenchError("there is no scheduler to measure")
            crowded = _taken(daemon.process.pid)
    for name, unit, among, without, most in (
        (f"gpushared idle, {TENANTS} tenants", "%", crowded.percent, alone.percent, MOST_PERCENT),
        (f"gpushared's memory, {TENANTS} tenants", "MiB", crowded.mib, alone.mib, MOST_MIB),
    ):
        yield Result(name, unit, among, without, among - without, most, absolute=True)


@contextmanager
def tenants(stack: Stack, count: int) -> Iterator[None]:
    """Run so many containers with some memory each, which they hold and do nothing with."""
    with ExitStack() as running:
        for _ in range(count):
            bundle = Bundle(stack, quota={"memory": "2GiB"})
            running.callback(bundle.remove)
            tenant = running.enter_context(bundle.run())
            if tenant.start()["code"] or tenant.ask("alloc 268435456")["code"]:
                raise BenchError(f"a tenant cannot have its memory: {tenant.errors}")
        yield


def _processes(daemon: int) -> list[int]:
    """Return the daemon and those that it has started and that run on."""
    children = Path(f"/proc/{daemon}/task").glob("*/children")
    return [daemon, *(int(pid) for file in children for pid in file.read_text().split())]


def _taken(daemon: int) -> Taken:
    time.sleep(SETTLE_SECONDS)
    pids = _processes(daemon)
    before, begun = sum(map(cpu_ns, pids)), time.monotonic_ns()
    time.sleep(SECONDS)
    percent = 100 * (sum(map(cpu_ns, pids)) - before) / (time.monotonic_ns() - begun)
    return Taken(percent, sum(map(resident_mib, pids)))


def cpu_ns(pid: int) -> int:
    """Return the time for which its threads have run; schedstat counts what ticks do not."""
    spent = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has just ended
            spent += int(file.read_text().split()[0])
    return spent


def resident_mib(pid: int) -> float:
    found = re.search(r"^VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise BenchError(f"process {pid} has ended")
    return int(found[1]) / 1024


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
