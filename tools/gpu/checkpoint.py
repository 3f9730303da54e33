# SPDX-License-Identifier: Apache-2.0
"""CUDA's checkpoints: their times, and what NVML has of a program meanwhile.

Only programs of its own are taken off the card. Persistence mode is read, and not changed. What the
calls return is a part of the contract (tests/c/contract/checkpoint.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpushare.verify import ProbeFailed

from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow
from .torch_view import importable

MIB, GIB = 1 << 20, 1 << 30
SIZES = (GIB, 4 * GIB, 16 * GIB)
#: Host memory that must be available for each byte: the program's, and what a driver may add.
HOST_FACTOR = 3
VERBS = ("lock", "checkpoint", "restore", "unlock")
STEPS = 20


@dataclass(frozen=True)
class Checkpointer:
    """A program that is checkpointed, its PID, and the one that does it."""

    target: Child
    caller: Child
    pid: str

    def must(self, verb: str) -> int:
        """Return the ns of a call for the program; NotMeasured where it does not succeed."""
        found = self.caller.ask(f"{verb} {self.pid}")
        if found["code"]:
            raise NotMeasured(f"{verb}: {found['name']}")
        return int(found["ns"])


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    """What checkpoints do here."""
    with _program(driver) as caller:
        if not caller.ask("load")["has"]:
            yield ReportRow("CUDA checkpoints", missing="this driver has none: 570 is the first")
            return
        found = caller.ask(f"card {driver.uuid} 0")
        yield ReportRow("persistence mode", "on" if found["persistence"] else "off")
    for part in (_sizes, _training):
        try:
            yield from part(driver)
        except (NotMeasured, ProbeFailed) as error:
            yield ReportRow(f"the rest of {part.__name__.strip('_')}", missing=str(error))


@contextmanager
def _program(driver: DriverPaths) -> Iterator[Child]:
    argv = child("checkpoint", str(driver.cuda))
    with Child("checkpoint", argv, environment(driver.env)) as started:
        started.start()
        yield started


@contextmanager
def _both(driver: DriverPaths) -> Iterator[Checkpointer]:
    """Start a program with a context, and one that checkpoints it."""
    with _program(driver) as target, _program(driver) as caller:
        caller.ask("load")
        caller.ask("initialize")
        begun = target.ask("begin")
        if begun["code"]:
            raise NotMeasured(str(begun["name"]))
        yield Checkpointer(target, caller, str(begun["pid"]))


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) << 10


def _taken(one: Checkpointer, size: int) -> None:
    """Let the program take memory; NotMeasured where it gets none."""
    if _available_bytes() < HOST_FACTOR * size:
        raise NotMeasured(f"{size // MIB} MiB: too little host memory is available")
    found = one.target.ask(f"take {size}")
    if found["code"]:
        raise NotMeasured(f"{size // MIB} MiB: {found['name']}")


def _times(one: Checkpointer, name: str, size: int) -> Iterator[ReportRow]:
    """Take the program off the card and put it back; each call's time, per GiB as well."""
    resident = one.target.ask("resident")["bytes"]
    grown = 0
    for verb in VERBS:
        ns = one.must(verb)
        note = f"{ns / 1e9 / (size / GIB):.3g} s per GiB" if verb in VERBS[1:3] else ""
        yield ReportRow(f"{name}: {verb}", ns, "ns", note)
        if verb == "checkpoint":
            grown = _resident_of(one.pid) - resident
    yield ReportRow(f"{name}: host memory that it takes", grown, "bytes")


def _resident_of(pid: str) -> int:
    """Return the host memory of a process that cannot be asked now."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmRSS"].split()[0]) << 10


def _sizes(driver: DriverPaths) -> Iterator[ReportRow]:
    with _both(driver) as one:
        yield from _times(one, "a context alone", GIB)
    for size in SIZES:
        name = f"{size / GIB:g} GiB"
        try:
            with _both(driver) as one:
                _taken(one, size)
                yield from _listed(driver, one, name)
                yield from _times(one, name, size)
        except NotMeasured as error:
            yield ReportRow(name, missing=str(error))


def _listed(driver: DriverPaths, one: Checkpointer, name: str) -> Iterator[ReportRow]:
    """What NVML has of the program before, during and after."""
    look = f"card {driver.uuid} {one.pid}"
    before = one.caller.ask(look)
    one.must("lock")
    one.must("checkpoint")
    during = one.caller.ask(look)
    one.must("restore")
    one.must("unlock")
    after = one.caller.ask(look)
    entry = during["process"]
    shown = "not listed" if entry is None else entry
    note = f"before {before['process']}, after {after['process']}"
    yield ReportRow(f"{name}: NVML's entry of the process", shown, note=note)
    given = before["used"] - during["used"]
    yield ReportRow(f"{name}: memory of the card that it gives back", given, "bytes")
    taken = after["used"] - during["used"]
    yield ReportRow(f"{name}: memory that it takes again", taken, "bytes")


def _training(driver: DriverPaths) -> Iterator[ReportRow]:
    """PyTorch's losses, undisturbed and through checkpoints, must be equal to the last bit."""
    env = environment(driver.env)
    importable(env)
    with Child("steps", child("steps"), env) as undisturbed:
        undisturbed.start()
        undisturbed.ask("begin")
        expected = [undisturbed.ask(f"step {STEPS}")["losses"] for _ in range(3)]
    with Child("steps", child("steps"), env) as target, _program(driver) as caller:
        target.start()
        pid = str(target.ask("begin")["pid"])
        caller.ask("load")
        caller.ask("initialize")
        one = Checkpointer(target, caller, pid)
        losses = [target.ask(f"step {STEPS}")["losses"]]
        for _ in range(2):
            for verb in VERBS:
                one.must(verb)
            losses.append(target.ask(f"step {STEPS}")["losses"])
        same = losses == expected
        yield ReportRow.claim("PyTorch computes the same losses", same, (losses, expected))
