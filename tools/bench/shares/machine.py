# SPDX-License-Identifier: Apache-2.0
"""A machine with a simulated card, and the tenants on it: with gpushare, or on the bare driver.

There are no containers. A tenant's processes have a mount namespace in which /opt is what it is in
a container, as those of tools/bench/tenant.py; on the bare driver they are plain processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare import simulator
from gpushare.daemon.pages.tenants import CardGrant, Pages
from gpushare.install import InstallSource
from gpushare.simulator.device_file import load_profile
from tools.bench.native import ROOT, compile_program
from tools.bench.tenant import entering
from tools.bench.turns import BenchError

from .card_time import Served
from .scenario import READ_EVERY_MS, Run, Scenario, TenantSpec
from .scheduler import Scheduling

QUOTA_BYTES = 8 << 30
CONTEXT_BYTES = 524 << 20
WARM_UP_SECONDS = 2  # of card time: estimates are learned, credit is at its level
READY_SECONDS = 60
SIMULATOR = ROOT / "simulator"
WATCHER = "the watcher"


@dataclass(frozen=True)
class Programs:
    """The C programs beside this file, compiled, and what they are run with."""

    work: Path
    watch: Path
    driver: Path  # a folder, as are the filters
    filters: Path

    @classmethod
    def build(cls, folder: Path) -> Programs:
        """Compile into `folder`, and copy there what /opt is to hold."""
        built = InstallSource.of_package().libraries
        driver, filters = folder / "driver", folder / "filter"
        shutil.copytree(built / "simulator", driver)
        filters.mkdir()
        shutil.copy2(built / "host/libcuda.so.1", filters)
        engine = [f"{SIMULATOR}/{name}.c" for name in _ENGINE]
        linked = ("-l:libcuda.so.1", "-lm")
        work = compile_program("shares/work.c", folder / "work", f"-L{driver}", after=linked)
        watch = compile_program(
            "shares/watch.c", folder / "watch", "-D_GNU_SOURCE", f"-I{SIMULATOR}", *engine
        )
        return cls(work, watch, driver, filters)


_ENGINE = ("cgroup", "device", "engine", "limit", "lock", "piece")


class SimulatedMachine:
    """One simulated machine, for one run."""

    def __init__(self, programs: Programs, folder: Path, profile: str, *, slow: float) -> None:
        self._programs = programs
        self._folder = folder
        self._slow = slow
        made = simulator.create(folder, profile, time_scale=slow)
        self._switch_us = load_profile(profile)["switch_drained_ns"] // 1000
        self._device, (self._uuid,) = made.device, made.uuids
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._scheduling: Scheduling | None = None

    def run(self, tenants: Sequence[TenantSpec], *, seconds: float, shared: bool) -> Run:
        """Let the tenants work for so long (card time), through gpushare where `shared`."""
        with contextlib.ExitStack() as stack:
            if shared:
                socket = self._folder / "scheduler.sock"
                self._scheduling = stack.enter_context(
                    Scheduling.started(socket, self._slow, self._switch_us)
                )
                for tenant in tenants:
                    self._admit(tenant, stack)
                self._scheduling.tell()
            stack.callback(self._end)
            for number, tenant in enumerate(tenants):
                self._start(tenant, seed=100 * number + 1)
            period = str(READ_EVERY_MS * self._slow)
            self._spawn(WATCHER, [str(self._programs.watch), period], {})
            self._wait_until_ready(tenants)
            return self._measure(tenants, seconds)

    def _admit(self, tenant: TenantSpec, stack: contextlib.ExitStack) -> None:
        """Make the tenant's pages, and announce it to the scheduler."""
        assert self._scheduling is not None
        place = self._folder / tenant.name
        place.mkdir()
        granted = CardGrant(self._uuid, QUOTA_BYTES, CONTEXT_BYTES, tenant.cores)
        pages = Pages.make(os.open(place, os.O_DIRECTORY), tenant.name, [granted])
        stack.callback(pages.close)
        pages.grant.set_bound()
        self._scheduling.add(tenant, self._uuid, pages.directory)

    def _start(self, tenant: TenantSpec, seed: int) -> None:
        """Start the tenant's process, with draws of its own."""
        filtered = self._scheduling is not None
        library = self._programs.filters if filtered else self._programs.driver
        pages = self._folder / tenant.name
        prefix = entering(self._programs.driver, pages) if filtered else ()
        words = tenant.load.arguments(slow=self._slow, seed=seed)
        self._spawn(
            tenant.name,
            [*prefix, str(self._programs.work), *words],
            {"CUDA_VISIBLE_DEVICES": self._uuid, "LD_LIBRARY_PATH": str(library)},
        )

    def _spawn(self, name: str, command: Sequence[str], variables: dict[str, str]) -> None:
        """Start a program with the card; it writes into the log of that name."""
        with self._log(name).open("wb") as output:
            self._processes[name] = subprocess.Popen(
                command,
                env=os.environ | {simulator.DEVICE_ENV: str(self._device)} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_until_ready(self, tenants: Sequence[TenantSpec]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        for tenant in tenants:
            while "ready\n" not in self._log(tenant.name).read_text():
                self._check_alive()
                if time.monotonic() > deadline:
                    raise BenchError(f"{tenant.name} is not ready after {READY_SECONDS} s")
                time.sleep(0.02)

    def _measure(self, tenants: Sequence[TenantSpec], seconds: float) -> Run:
        time.sleep(WARM_UP_SECONDS * self._slow)
        cpu_ns = self._scheduling.cpu_ns if self._scheduling else lambda: 0
        start, cpu_start = time.monotonic_ns(), cpu_ns()
        time.sleep(seconds * self._slow)
        end, cpu_end = time.monotonic_ns(), cpu_ns()
        time.sleep(2 * READ_EVERY_MS / 1000 * self._slow)
        self._check_alive()
        said = {tenant.name: _said(self._log(tenant.name), start) for tenant in tenants}
        return Run(
            start=start,
            end=end,
            slow=self._slow,
            served=self._served(tenants),
            latencies_ms={name: words["request"] for name, words in said.items()},
            resumed_ms={name: words["resumed"] for name, words in said.items()},
            scheduler_cpu=(cpu_end - cpu_start) / (end - start),
        )

    def _served(self, tenants: Sequence[TenantSpec]) -> dict[str, Served]:
        name_of = {process.pid: name for name, process in self._processes.items()}
        found = {tenant.name: Served() for tenant in tenants}
        for moment, by_pid in parse_readings(self._log(WATCHER).read_text()):
            for pid, served in by_pid:
                if name_of.get(pid) in found:
                    found[name_of[pid]].add(moment, served)
        return found

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                said = self._log(name).read_text()[-400:]
                raise BenchError(f"{name} ended: status {process.returncode}: {said}")
        if self._scheduling and not self._scheduling.alive():
            raise BenchError("the scheduler ended")

    def _end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def parse_readings(text: str) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Return the moment, and the card time by pid, of each line of watch.c that is whole."""
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            return
        moment, *rest = map(int, line.split())
        yield moment, list(zip(rest[::2], map(float, rest[1::2]), strict=True))


def _said(log: Path, since: int) -> dict[str, list[float]]:
    """Return how long each step of work.c took (ms of card time), for steps begun after `since`."""
    found: dict[str, list[float]] = {"request": [], "resumed": []}
    for line in log.read_text().splitlines():
        word, *numbers = line.split()
        if word in found and len(numbers) == 2 and int(numbers[0]) >= since:
            found[word].append(int(numbers[1]) / 1e6)
    return found


def measure_variant(
    programs: Programs, folder: Path, scenario: Scenario, seconds: float, variant: str
) -> Run:
    """Run one variant of a scenario: "gpushare", "native" or "alone"."""
    place = folder / scenario.name / variant
    place.mkdir(parents=True)
    machine = SimulatedMachine(programs, place, scenario.profile, slow=scenario.slow)
    tenants = [scenario.tenant(scenario.alone)] if variant == "alone" else scenario.tenants
    try:
        return machine.run(tenants, seconds=seconds, shared=variant == "gpushare")
    finally:
        shutil.rmtree(place)
