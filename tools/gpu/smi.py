# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi as a tenant: what it prints, and by which names it reaches NVML.

The loader itself says which names were looked up, in which library each was found (LD_DEBUG,
ld.so(8)). Which tables of undocumented functions a program asks for, and which lists of processes,
recorder.c tells. A process of no tenant is started to see whether it shows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import built, overhead, programs
from .driver import DriverPaths
from .filtered import tenancy
from .process import Child, run
from .report import NotMeasured, ReportRow
from .symbols import nvml_symbols
from .tenancy import Tenancy

QUERY = "--query-gpu=memory.total,memory.used,memory.free"
FORMAT = "--format=csv,noheader,nounits"
MIB = 1 << 20
ALLOCATED = 256 * MIB
LOOKUP = re.compile(r"symbol=(nvml\w+);\s+lookup in file=(\S+)")
FOLDERS = ("/usr/local/nvidia/bin", "/opt/bin", "/usr/lib/wsl/lib")
LIST = re.compile(r" (?:count|error) -?\d+$")
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
    with tenancy(driver) as tenant:
        with Child("tenant", tenant.command([built.probe()]), tenant.environment) as process:
            process.start()
            process.ask(f"alloc {ALLOCATED}")
            yield from _memory(program, tenant)
            yield from _printed(program, tenant)
            yield from processes(driver, program, tenant, process.process.pid)
            yield from _recorded(program, tenant)
        yield from _names(program, tenant)


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


def names(text: str) -> dict[str, str]:
    """Return each NVML name in the loader's log of lookups, and where it was searched last."""
    return dict(LOOKUP.findall(text))


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


def _names(program: str, tenant: Tenancy) -> Iterator[ReportRow]:
    with tempfile.TemporaryDirectory() as folder:
        log = ["LD_DEBUG=symbols", f"LD_DEBUG_OUTPUT={folder}/log"]
        run(tenant.command(["env", *log, program]), tenant.environment)
        text = "".join(file.read_text(errors="replace") for file in Path(folder).iterdir())
    seen = names(text)
    if not seen:
        raise NotMeasured("the loader logged no look-up of an NVML name")
    unknown = sorted(set(seen) - nvml_symbols())
    yield ReportRow("NVML names it looks up", len(seen), detail=tuple(sorted(seen)))
    yield ReportRow("of them not in our table", len(unknown), detail=tuple(unknown))
    past = sorted(name for name, file in seen.items() if file.startswith("/opt/gpushare/driver/"))
    yield ReportRow("of them found past the filter", len(past), detail=tuple(past))


def _recorded(program: str, tenant: Tenancy) -> Iterator[ReportRow]:
    """What it asks of the driver beside names: undocumented tables, lists of processes."""
    name = "tables of undocumented functions asked for"
    try:
        library = programs.program("recorder")
    except NotMeasured as error:
        yield ReportRow(name, missing=str(error))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        audit = [f"LD_AUDIT={library}", f"GPU_RECORDER_LOG={log}"]
        done = run(tenant.command(["env", *audit, program]), tenant.environment)
        lines = log.read_text().splitlines() if log.exists() else []
    if done.returncode:
        yield ReportRow(name, missing=f"nvidia-smi under the recorder ended with {done.returncode}")
        return
    lists = tuple(line for line in lines if LIST.search(line))
    tables = tuple(sorted(set(lines) - set(lists)))
    yield ReportRow(name, len(tables), detail=tables)
    note = "none: its processes come by one of the tables" if tables and not lists else ""
    yield ReportRow("exported lists of processes asked for", len(lists), note=note, detail=lists)


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
