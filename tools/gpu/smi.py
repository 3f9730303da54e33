# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi as a tenant: what it prints.

A process of no tenant is started to see whether it shows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

from . import built, overhead
from .driver import DriverPaths
from .filtered import tenancy
from .process import Child, run
from .report import NotMeasured, ReportRow
from .tenancy import Tenancy

QUERY = "--query-gpu=memory.total,memory.used,memory.free"
FORMAT = "--format=csv,noheader,nounits"
MIB = 1 << 20
ALLOCATED = 256 * MIB
FOLDERS = ("/usr/local/nvidia/bin", "/opt/bin", "/usr/lib/wsl/lib")
NUMBER = re.compile(r"(?<![\w.-])\d+(?![\w.-]|\s*MiB)")
LISTINGS = {
    "nvidia-smi": (),
    "nvidia-smi --query-compute-apps": (
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader",
    ),
    "nvidia-smi -q": ("-q", "-d", "PIDS"),
    "nvidia-smi pmon": ("pmon", "-c", "1"),
}


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    program = find(driver)
    with (
        tenancy(driver) as tenant,
        Child("tenant", tenant.command([built.probe()]), tenant.environment) as process,
    ):
        process.start()
        process.ask(f"alloc {ALLOCATED}")
        yield from _memory(program, tenant)
        yield from _printed(program, tenant)
        yield from processes(driver, program, tenant, process.process.pid)


def find(driver: DriverPaths) -> str:
    """Return nvidia-smi's path; NotMeasured where there is none for this driver."""
    if driver.named:
        raise NotMeasured("nvidia-smi belongs to the loader's driver, not to a folder named")
    for folder in (None, ":".join(FOLDERS)):
        if program := shutil.which("nvidia-smi", path=folder):
            return program
    raise NotMeasured("nvidia-smi is not on this machine")


def memory(text: str) -> list[tuple[int, ...]]:
    """Return what the QUERY printed: (total, used, free) in bytes for each card."""
    lines = [line.split(",") for line in text.strip().splitlines()]
    return [tuple(int(figure) * MIB for figure in line) for line in lines]


def _memory(program: str, tenant: Tenancy) -> Iterator[ReportRow]:
    done = run(tenant.command([program, QUERY, FORMAT]), tenant.environment)
    if done.returncode:
        raise NotMeasured(f"nvidia-smi ended with {done.returncode}: {_said(done)}")
    cards = memory(done.stdout)
    total, used, free = cards[0]
    yield ReportRow.claim("nvidia-smi shows one card", len(cards) == 1, done.stdout)
    yield ReportRow.claim("its total is the quota", total == tenant.memory_bytes, done.stdout)
    yield ReportRow.claim(
        "its used is the tenant's own", ALLOCATED <= used < tenant.memory_bytes, done.stdout
    )
    yield ReportRow("nvidia-smi: used", used, "bytes", f"of it {ALLOCATED // MIB} MiB allocated")
    yield ReportRow.claim(
        "used and free are the total", abs(total - used - free) <= MIB, done.stdout
    )


def _printed(program: str, tenant: Tenancy) -> Iterator[ReportRow]:
    done = run(tenant.command([program]), tenant.environment)
    yield ReportRow.claim("plain nvidia-smi ends with 0", done.returncode == 0, _said(done))
    shown = [line.strip() for line in done.stdout.splitlines() if "MiB" in line]
    yield ReportRow("plain nvidia-smi: lines with memory", len(shown), detail=tuple(shown))
    version = "Driver Version:" in done.stdout
    yield ReportRow.claim("it names the driver's version", version, done.stdout[:200])


def processes(driver: DriverPaths, program: str, tenant: Tenancy, own: int) -> Iterator[ReportRow]:
    """Which processes it shows: process `own` is the tenant's, another is started that is not."""
    with overhead.probe(driver, "foreign") as foreign:
        foreign.ask("context")
        foreign.ask(f"alloc {ALLOCATED}")
        stranger = foreign.process.pid
        for how, arguments in LISTINGS.items():
            done = run(tenant.command([program, *arguments]), tenant.environment)
            if done.returncode:
                yield ReportRow(f"{how}: its processes", missing=_said(done))
                continue
            shown = pids(done.stdout)
            yield ReportRow(f"{how}: shows the tenant's process", "yes" if own in shown else "no")
            lines = [line.strip() for line in done.stdout.splitlines() if str(stranger) in line]
            yield ReportRow.claim(
                f"{how}: shows no process of others", stranger not in shown, " / ".join(lines)
            )


def pids(text: str) -> set[int]:
    """Return every whole number in `text` that is no size: a pid that is shown is among them."""
    return {int(number) for number in NUMBER.findall(text)}


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip() or done.stdout.strip() or "nothing said")[-300:]
