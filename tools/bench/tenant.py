# SPDX-License-Identifier: Apache-2.0
"""A tenant without daemon or container: the filters over the simulator, with pages of our own.

The filters name the driver by a path in /opt, so the program runs in a mount namespace of its own,
where /opt holds nothing but what it needs; the machine's /opt is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare import abi, simulator
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import CardGrant, GrantPage
from gpushare.host import mounts
from gpushare.install import InstallSource
from tests import leftovers

from .native import compile_program
from .result import Result
from .turns import BenchError

PROFILE = "h200"
QUOTA_BYTES = 4 << 30
#: A gate in which nothing is ever in the way: what is measured is the looking. Markers are as many
#: as the scheduler asks for, and its heartbeat is never old.
GATE_FIELDS = {
    abi.GATE_IN_FLIGHT_MAX_NS: 1_000_000_000,
    abi.GATE_TIMING_INTERVAL_NS: 500_000,
    abi.GATE_WAIT_MAX_NS: 1_000_000_000,
    abi.GATE_HEARTBEAT_NS: 1 << 62,
}
CONTEXT_BYTES = 512 << 20
DRIVER = f"{mounts.DRIVER}/libcuda.so.1"
ENTER = f"""
set -eu
mount -t tmpfs tmpfs /opt
mkdir -p {mounts.DRIVER} {mounts.TENANT}
mount --bind "$1" {mounts.DRIVER}
mount --bind "$2" {mounts.TENANT}
shift 2
exec "$@"
"""


def entering(driver: Path, pages: Path) -> tuple[str, ...]:
    """Return what runs a command where /opt has a driver and a tenant's pages, as containers do."""
    return ("unshare", "--mount", "sh", "-c", ENTER, "sh", str(driver), str(pages))


class BenchTenant:
    """A folder with a filter, a driver, pages and a device file."""

    def __init__(self, folder: Path, profile: str = PROFILE) -> None:
        self.folder = folder
        self._filter = folder / "filter" / "libcuda.so.1"
        built = InstallSource.of_package().libraries
        shutil.copytree(built / "simulator", folder / "driver")
        self._filter.parent.mkdir()
        shutil.copy2(built / "host/libcuda.so.1", self._filter)
        made = simulator.create(folder / "device", profile)
        self._device = made.device
        self._uuids = made.uuids
        self._programs: dict[str, Path] = {}

    def result(
        self,
        name: str,
        call: str,
        *,
        rounds: int,
        budget: float,
        processes: int = 1,
        absolute: bool = False,
        gate: int = abi.GATE_OPEN,
    ) -> Result:
        """Measure `call` at a gate of mode `gate`, of the first card, against `budget` (ns)."""
        words = [str(self._filter), DRIVER, str(rounds), str(processes)]
        said = self._run("driver", call, *words, gate=gate)
        bare, filtered, difference = map(float, said.split())
        if (self._submitted() > 0) != (gate != abi.GATE_OPEN):
            raise BenchError(f"{call}: {self._submitted()} launches were counted in mode {gate}")
        return Result(name, "ns", filtered, bare, difference, budget, absolute)

    def _submitted(self) -> int:
        """Return how much work the process counted."""
        with (self.folder / "tenant" / abi.STATUS_NAME).open("rb") as status:
            status.seek(abi.status_work_offset(0) + abi.WORK_SUBMITTED)
            return int.from_bytes(status.read(8), "little")

    def start_up(self, rounds: int, budget: float, threads: int) -> Iterator[Result]:
        """Yield the time of dlopen, and of dlopen with cuInit; `budget` is in microseconds."""
        words = (str(self._filter), DRIVER, str(rounds), str(threads))
        said = self._run("startup", *words).splitlines()
        for name, limit, line in zip(
            ("dlopen", "dlopen + cuInit"), (None, budget), said, strict=True
        ):
            bare, filtered, difference = map(float, line.split())
            yield Result(
                f"{name}, extra threads: {threads}", "us", filtered, bare, difference, limit
            )

    def _run(self, program: str, *arguments: str, gate: int = abi.GATE_OPEN) -> str:
        """Run one of the C programs as a process of the tenant; what it printed."""
        self._write_pages(gate)
        compiled = self._programs.get(program)
        if compiled is None:
            compiled = compile_program(f"{program}.c", self.folder / f"{program}-bench")
            self._programs[program] = compiled
        done = subprocess.run(
            [
                *entering(self.folder / "driver", self.folder / "tenant"),
                str(compiled),
                *arguments,
            ],
            env=os.environ | {simulator.DEVICE_ENV: str(self._device)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            words = " ".join((program, *arguments))
            raise BenchError(f"{words}: exit status {done.returncode}: {done.stderr}")
        return done.stdout

    def _write_pages(self, gate: int) -> None:
        pages = self.folder / "tenant"
        shutil.rmtree(pages, ignore_errors=True)
        pages.mkdir()
        directory = os.open(pages, os.O_DIRECTORY)
        try:
            StatusPage.make(directory)
            granted = [CardGrant(uuid, QUOTA_BYTES, CONTEXT_BYTES, 0) for uuid in self._uuids]
            GrantPage.make(directory, "bench", granted).set_bound()
        finally:
            os.close(directory)
        with (pages / abi.GRANT_NAME).open("r+b") as grant:
            for field, value in GATE_FIELDS.items():
                grant.seek(abi.gate_offset(0) + field)
                grant.write(value.to_bytes(8, "little"))
            grant.seek(abi.gate_offset(0) + abi.GATE_MODE)
            grant.write(gate.to_bytes(4, "little"))


@contextmanager
def tenant(profile: str = PROFILE) -> Iterator[BenchTenant]:
    """Make a tenant of one card, and remove it afterwards."""
    with leftovers.folder("gpushare-bench-") as folder:
        yield BenchTenant(folder, profile)
