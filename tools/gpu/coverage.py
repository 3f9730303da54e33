# SPDX-License-Identifier: Apache-2.0
"""Every allocation path, to the last granule and one past it.

The paths are those of the tests (tests/c/interposer/allocations.py), here on the real driver. The
report compares each path's charge with two figures of the driver: what NVML reports for the
process, and how much less free memory another process sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpushare import abi
from gpushare.daemon.pages.status_page import MemoryUse
from gpushare.verify.runners import ProbeFailed
from tests.c.interposer.allocations import ALLOCATION_PATHS as ALL_PATHS
from tests.c.interposer.client import OUT_OF_MEMORY

from . import overhead
from .driver import DriverPaths
from .filtered import GRANULE, tenancy
from .process import Child, child
from .report import NotMeasured, ReportRow
from .tenancy import Tenancy

MIB = 1 << 20
#: On a real driver, only another interface (Vulkan, OpenGL) can export external memory.
ALLOCATION_PATHS = tuple(path for path in ALL_PATHS if path != "external")
#: Of these one larger one is taken, not one more: there is one heap, and graphs of one stream use
#: the same memory one after another.
ONE_AT_A_TIME = ("graph", "limit")
#: Pools and graphs take memory in chunks, a module has code beside its variables, and a heap is
#: rounded; how far from the quota each stops is a figure of the report.
COARSE_BYTES = dict.fromkeys(("async", "pool", "graph", "module", "limit"), 64 * MIB)
KINDS = {
    getattr(abi, name): name.removeprefix("KIND_").lower()
    for name in dir(abi)
    if name.startswith("KIND_")
}


class Allocations(Child):
    """A process of `tenant` that takes memory as it is told."""

    def __init__(self, tenant: Tenancy) -> None:
        super().__init__("allocations", tenant.command(child("allocations")), tenant.environment)
        self.start()

    def __enter__(self) -> Allocations:
        return self

    def take(self, path: str, size: int) -> tuple[int, int]:
        """Return the driver's error, 0 for none, and the number to give it back by."""
        found = self.ask(f"take {path} {size}")
        return found["code"], found["number"]

    def give(self, number: int) -> int:
        return int(self.ask(f"give {number}")["code"])

    def trim(self) -> None:
        self.ask("trim")

    def free(self) -> int:
        """What cuMemGetInfo shows the tenant as free."""
        return int(self.ask("info")["free"])


@dataclass
class Full:
    """What a path gave until it refused: how much, as which numbers, and the last refusal."""

    given: int
    numbers: list[int]
    code: int


def fill(process: Allocations, path: str, most: int) -> Full:
    """Take ever smaller pieces through `path` until a granule is refused or `most` is passed."""
    full, piece = Full(0, [], 0), 1 << (most.bit_length() - 1)
    while piece >= GRANULE and full.given <= most:
        size = piece
        if path in ONE_AT_A_TIME:
            _empty(process, full)
            size += full.given
        code, number = process.take(path, size)
        if code:
            full.code = code
            piece //= 2
        else:
            full.given += piece
            full.numbers.append(number)
    if full.given and not full.numbers:
        code, number = process.take(path, full.given)
        full.numbers = [] if code else [number]
    return full


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    with tenancy(driver) as tenant, overhead.probe(driver, "watcher") as watcher:
        watcher.ask("context")
        yield ReportRow("quota", tenant.memory_bytes, "bytes", "of a tenant without a daemon")
        yield from _paths(driver, tenant, watcher)
        yield ReportRow("said to the daemon", len(tenant.messages), detail=tuple(tenant.messages))


def _paths(driver: DriverPaths, tenant: Tenancy, watcher: Child) -> Iterator[ReportRow]:
    """Each path in a process of its own: what one leaves behind is not the next one's."""
    for path in ALLOCATION_PATHS:
        try:
            with Allocations(tenant) as process:
                yield from _path(Account(driver, tenant, watcher, process), path)
        except (NotMeasured, ProbeFailed, ValueError) as error:
            yield ReportRow(path, missing=str(error))


def _path(account: Account, path: str) -> Iterator[ReportRow]:
    process = account.process
    process.free()  # has a context from here on
    before = account.read()
    seen: list[ReportRow] = []

    def when_full() -> None:
        seen.append(ReportRow(f"{path}: not given", process.free(), "bytes", "as programs see it"))
        seen.extend(account.grown(path, before))

    lost = _lost(process, path, account.tenant.memory_bytes, when_full)
    yield ReportRow.claim(f"{path}: gives the quota, not more, and is free again", not lost, lost)
    yield from seen
    yield account.kept(path, before)


def _lost(process: Allocations, path: str, most: int, when_full: Callable[[], None]) -> str:
    """Return in what `path` does not hold, "" where it does."""
    room = process.free()
    # Before anything fills a card: one piece of more than the quota.
    code, number = process.take(path, most + GRANULE)
    if not code:
        process.give(number)
        return "more than the quota was given"
    full = fill(process, path, most)
    when_full()
    _empty(process, full)
    process.trim()
    if not _holds(path, room, full):
        return f"of {room} free {full.given} were given, then {full.code}"
    back = process.free()
    return "" if back == room else f"{room - back} bytes were not given back"


def _holds(path: str, room: int, full: Full) -> bool:
    coarse = COARSE_BYTES.get(path.removesuffix("_ptsz"), 2 * GRANULE)
    return 0 <= room - full.given < coarse and full.code == OUT_OF_MEMORY


def _empty(process: Allocations, full: Full) -> None:
    while full.numbers:
        process.give(full.numbers.pop())


@dataclass(frozen=True)
class MemorySnapshot:
    """One moment: what is charged, what NVML says of the process, what another sees as free."""

    charged: MemoryUse
    process: int | None
    free: int


@dataclass
class Account:
    """The three accounts of one process of the tenant; `watcher` is one on the bare driver."""

    driver: DriverPaths
    tenant: Tenancy
    watcher: Child
    process: Allocations

    def read(self) -> MemorySnapshot:
        pid = self.process.process.pid
        claims = [claim.held[0] for claim in self.tenant.status.claims(1) if claim.pid == pid]
        shown = overhead.card(self.watcher, self.driver)
        own = [entry["bytes"] for entry in shown["processes"] if entry["pid"] == pid]
        free = self.watcher.ask("info")["free"]
        return MemorySnapshot(claims[0] if claims else MemoryUse(), own[0] if own else None, free)

    def grown(self, path: str, before: MemorySnapshot) -> Iterator[ReportRow]:
        now = self.read()
        charged = now.charged.held_bytes - before.charged.held_bytes
        yield ReportRow(f"{path}: charged", charged, "bytes", _kinds(before.charged, now.charged))
        name = f"{path}: NVML, of the process"
        if before.process is None or now.process is None:
            yield ReportRow(name, missing="NVML does not list the process")
        else:
            yield _beyond(name, now.process - before.process, charged)
        yield _beyond(f"{path}: the card has less free by", before.free - now.free, charged)

    def kept(self, path: str, before: MemorySnapshot) -> ReportRow:
        """What the driver keeps once all is given back."""
        now = self.read()
        charged = now.charged.held_bytes - before.charged.held_bytes
        kept, note = before.free - now.free, f"{charged} bytes are charged"
        return ReportRow(f"{path}: kept by the driver", kept, "bytes", note)


def _beyond(name: str, taken: int, charged: int) -> ReportRow:
    return ReportRow(name, taken, "bytes", f"beyond what is charged: {taken - charged} bytes")


def _kinds(before: MemoryUse, now: MemoryUse) -> str:
    grown = [new - old for old, new in zip(before.kinds, now.kinds, strict=True)]
    told = [f"{KINDS[kind]} {size}" for kind, size in enumerate(grown) if size]
    return f"bytes by kind: {', '.join(told) or 'none'}"
