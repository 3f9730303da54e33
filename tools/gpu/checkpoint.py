# SPDX-License-Identifier: Apache-2.0
"""CUDA's checkpoints: their times, and what NVML has of a program meanwhile.

Only programs of its own are taken off the card. Persistence mode is read, and not changed. What the
calls return, and that a program's bytes stay, is in the contract (tests/c/contract/checkpoint.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow

MIB, GIB = 1 << 20, 1 << 30
SIZES = (0, GIB, 4 * GIB, 16 * GIB)
#: Host memory that must be available for each byte: the program's, and what a driver may add.
HOST_FACTOR = 3
VERBS = ("lock", "checkpoint", "restore", "unlock")


@dataclass(frozen=True)
class Checkpointer:
    """A program that is checkpointed, its PID, and the one that does it."""

    target: Child
    caller: Child
    pid: str

    def must(self, command: str) -> dict[str, Any]:
        """Return the answer to a command about the program; NotMeasured unless it succeeds."""
        found = self.caller.ask(f"{command} {self.pid}")
        if found.get("code"):
            raise NotMeasured(f"{command}: {found['name']}")
        return found

    def listed(self) -> tuple[int, int | None]:
        """Return the card's used memory, and NVML's entry of the program, None without one."""
        found = self.caller.ask("listed")
        return found["used"], found["compute"].get(self.pid)


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    """What checkpoints do here."""
    with _program(driver) as caller:
        if not caller.ask("has_checkpoints")["has"]:
            yield ReportRow("CUDA checkpoints", missing="this driver has none: 570 is the first")
            return
        yield ReportRow("persistence mode", "on" if caller.ask("listed")["persistence"] else "off")
    for size in SIZES:
        name = f"{size / GIB:g} GiB" if size else "a context alone"
        try:
            with _both(driver) as one:
                _take(one, size)
                yield from _times(one, name, size)
        except NotMeasured as error:
            yield ReportRow(name, missing=str(error))


@contextmanager
def _program(driver: DriverPaths) -> Iterator[Child]:
    argv = child("tried", str(driver.cuda), driver.uuid)
    with Child("checkpoint", argv, environment(driver.env)) as started:
        started.start()
        yield started


@contextmanager
def _both(driver: DriverPaths) -> Iterator[Checkpointer]:
    """Start a program with a context, and one that checkpoints it."""
    with _program(driver) as target, _program(driver) as caller:
        caller.ask("initialize")
        begun = target.ask("begin")
        if begun["code"]:
            raise NotMeasured(str(begun["name"]))
        yield Checkpointer(target, caller, str(begun["pid"]))


def _take(one: Checkpointer, size: int) -> None:
    """Let the program take memory; NotMeasured where it gets none."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) << 10
    if available < HOST_FACTOR * size:
        raise NotMeasured("too little host memory is available")
    found = one.target.ask(f"linear {size}") if size else {"code": 0}
    if found["code"]:
        raise NotMeasured(str(found["name"]))


def _times(one: Checkpointer, name: str, size: int) -> Iterator[ReportRow]:
    """Take the program off the card and put it back: each call's time, and what is held where."""
    resident, before = one.must("resident")["bytes"], one.listed()
    for verb in VERBS:
        ns = one.must(verb)["ns"]
        note = f"{ns / 1e9 / (size / GIB):.3g} s per GiB" if size and verb in VERBS[1:3] else ""
        yield ReportRow(f"{name}: {verb}", ns, "ns", note)
        if verb == "checkpoint":
            grown, during = one.must("resident")["bytes"] - resident, one.listed()
    after = one.listed()
    yield ReportRow(f"{name}: host memory that it takes", grown, "bytes")
    shown = "not listed" if during[1] is None else during[1]
    note = f"before {before[1]}, after {after[1]}"
    yield ReportRow(f"{name}: NVML's entry of the process", shown, note=note)
    given, taken = before[0] - during[0], after[0] - during[0]
    yield ReportRow(f"{name}: memory of the card that it gives back", given, "bytes")
    yield ReportRow(f"{name}: memory that it takes again", taken, "bytes")
