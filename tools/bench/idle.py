# SPDX-License-Identifier: Apache-2.0
"""What gpushare's processes take of a node of 16 cards on which 200 containers do nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.scraped import Exporter

from .result import Result
from .turns import BenchError

TENANTS = 200
CARDS = 16  # a card has 16 shares
SCRAPE_SECONDS = 15.0
SCRAPES = 4
MOST_PERCENT = 0.7
MOST_MIB = 90.0
_CPUCLOCK_SCHED = 2  # Linux, include/linux/posix-timers_types.h
#: What Prometheus sends.
SCRAPE_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4",
    "Accept-Encoding": "gzip",
}
#: The programs that gpushared starts, by a part of their command lines.
PROGRAMS = {
    "gpushare-scheduler": "scheduler",
    "worker_main": "NVML worker",
    "gpushare.history": "history",
}


@dataclass(frozen=True)
class Cost:
    """Of one core in percent, and memory in MiB (PSS: what processes share is divided by them)."""

    percent: float
    mib: float


def measure() -> Iterator[Result]:
    """Compare with the same processes while there is no container."""
    with Stack(cards=CARDS) as stack:
        # Executed, as systemd does it: a fork of this process would share its memory.
        daemon = stack.start_daemon(wrapper=("env",))
        exporter = Exporter.of(stack)
        alone = _costs(daemon.process.pid, exporter)
        with tenants(stack, TENANTS):
            crowded = _costs(daemon.process.pid, exporter)
    if crowded.keys() != alone.keys():
        raise BenchError(f"other processes than before: {', '.join(crowded.keys() ^ alone.keys())}")
    for name in (*crowded, "all"):
        with_them, without = _total(crowded, name), _total(alone, name)
        most_percent, most_mib = (MOST_PERCENT, MOST_MIB) if name == "all" else (None, None)
        for what, unit, value, baseline, most in (
            ("time", "%", with_them.percent, without.percent, most_percent),
            ("memory", "MiB", with_them.mib, without.mib, most_mib),
        ):
            row = f"{TENANTS} idle containers, {what}: {name}"
            yield Result(row, unit, value, baseline, value - baseline, most, absolute=True)


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


def _costs(daemon: int, exporter: Exporter) -> dict[str, Cost]:
    """Return what each process takes between scrapes, and the memory of each after the last."""
    time.sleep(SCRAPE_SECONDS)
    _scrape(exporter)
    pids = _processes(daemon) | {"exporter": exporter.program.process.pid}
    before = {name: cpu_ns(pid) for name, pid in pids.items()}
    begun = time.monotonic_ns()
    for _ in range(SCRAPES):
        time.sleep(SCRAPE_SECONDS)
        _scrape(exporter)
    after = {name: cpu_ns(pid) for name, pid in pids.items()}
    elapsed = time.monotonic_ns() - begun
    return {
        name: Cost(100 * (after[name] - before[name]) / elapsed, pss_mib(pid))
        for name, pid in pids.items()
    }


def _total(costs: Mapping[str, Cost], name: str) -> Cost:
    wanted = costs.values() if name == "all" else [costs[name]]
    return Cost(sum(cost.percent for cost in wanted), sum(cost.mib for cost in wanted))


def _scrape(exporter: Exporter) -> None:
    status, _ = exporter.ask(**SCRAPE_HEADERS)
    if status != HTTPStatus.OK:
        raise BenchError(f"the exporter answers {status}")


def _processes(daemon: int) -> dict[str, int]:
    """Return the daemon and those that it has started, by name."""
    children = Path(f"/proc/{daemon}/task").glob("*/children")
    found = {"gpushared": daemon}
    for pid in (int(pid) for file in children for pid in file.read_text().split()):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        name = next((name for part, name in PROGRAMS.items() if part in command), command)
        if name in found:
            raise BenchError(f"there is more than one {name}")
        found[name] = pid
    if "scheduler" not in found:
        raise BenchError("there is no scheduler to measure")
    return found


def cpu_ns(pid: int) -> int:
    """Return the time for which its threads have run, those that have ended as well.

    The clock of another process, as clock_getcpuclockid(3) makes it: ticks miss short runs.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)


def pss_mib(pid: int) -> float:
    """Return its memory, with its part of what it shares with other processes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s*(\d+) kB", rollup, re.MULTILINE)
    if found is None:
        raise BenchError(f"process {pid} has ended")
    return int(found[1]) / 1024
