# SPDX-License-Identifier: Apache-2.0
"""Every way to the driver by every door to memory, to the quota's last granule and one step past.

The program is the unit tests' (tests/unit/interposer/doors_program.c), here over the real driver.
For the plain way each door's account is set beside the driver's two: what NVML says that the
process has, and by how much another process sees the card's free memory fall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty
from typing import Any

from gpushare import abi
from gpushare.daemon.pages.account import Held
from gpushare.verify import ProbeFailed

from . import overhead, programs
from .driver import Driver
from .filtered import GRANULE, tenancy
from .process import Child
from .report import NotMeasured, Row, quantity
from .tenancy import Tenancy

OUT_OF_MEMORY = 2
ANSWER_SECONDS = 90.0
MIB = 1 << 20
#: In the order in which frameworks come to them; those of doors.c, but for external memory: only
#: another interface of the driver's (Vulkan, OpenGL) exports what a real one imports.
DOORS = (
    *("buffer", "pitch", "managed", "async", "async_ptsz", "pool", "pool_ptsz"),
    *("physical", "mapped", "array", "mipmapped", "graph", "module", "limit"),
)
#: Of these one larger one is taken, not one more: there is one heap, and graphs of one stream use
#: the same memory one after another.
ONE_AT_A_TIME = ("graph", "limit")
#: Pools and graphs take memory in chunks, a module has code beside its variables, and a heap is
#: rounded; how far from the quota each stops is a figure of the report.
COARSE_BYTES = dict.fromkeys(("async", "pool", "graph", "module", "limit"), 64 * MIB)
PLAIN = "dlopen"
WAYS = (
    *("linked", "global", "deepbind", "dlmopen", "absolute", "dlvsym"),
    *("procaddress", "procaddress-per-thread", "procaddress-of-procaddress", "procaddress-v1"),
)
KINDS = {
    abi.KIND_BUFFER: "buffer",
    abi.KIND_CONTEXT: "context",
    abi.KIND_MANAGED: "managed",
    abi.KIND_POOL: "pool",
    abi.KIND_PHYSICAL: "physical",
    abi.KIND_ARRAY: "array",
    abi.KIND_GRAPH: "graph",
    abi.KIND_MODULE: "module",
    abi.KIND_LIMIT: "limit",
    abi.KIND_EXTERNAL: "external",
}


class Doors(Child):
    """A running doors_program.c, whose answers are "ok NUMBER..." and "error CODE"."""

    def __init__(self, tenant: Tenancy, way: str) -> None:
        program = programs.program("linked-doors" if way == "linked" else "doors")
        env = {**tenant.environment, "LIBCUDA": str(tenant.driver.cuda)}
        super().__init__(f"doors, {way}", tenant.command([str(program), way]), env)

    def __enter__(self) -> Doors:
        return self

    def answer(self, event: str) -> dict[str, Any]:
        """Return `code`, 0 or the driver's error, and the numbers behind it."""
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS)
        except Empty:
            self.process.kill()
            line = None
        if not line:
            self._readers[1].join(timeout=5)
            raise ProbeFailed(f"{self.name} gave no answer to {event}: {self.errors}")
        word, *numbers = line.split()
        found = [int(number) for number in numbers]
        return {"code": found[0] if word == "error" else 0, "numbers": found}

    def take(self, door: str, size: int) -> tuple[int, int]:
        """Return the driver's error, 0 for none, and the number to give it back by."""
        found = self.ask(f"take {door} {size}")
        return found["code"], found["numbers"][0]

    def give(self, number: int) -> int:
        return int(self.ask(f"give {number}")["code"])

    def trim(self) -> None:
        self.ask("trim")

    def free(self) -> int:
        """What cuMemGetInfo shows the tenant as free."""
        return int(self.ask("info")["numbers"][0])


@dataclass
class Full:
    """What a door gave until it refused: how much, as which numbers, and the last refusal."""

    given: int
    numbers: list[int]
    code: int


def fill(process: Doors, door: str, most: int) -> Full:
    """Take ever smaller pieces through `door` until one granule is refused, or `most` is passed."""
    full, piece = Full(0, [], 0), _largest(most)
    while piece >= GRANULE and full.given <= most:
        code, number = process.take(door, piece)
        if code:
            full.code = code
            piece //= 2
        else:
            full.given += piece
            full.numbers.append(number)
    return full


def grow(process: Doors, door: str, most: int) -> Full:
    """As fill, of a door that is to be asked for one larger piece instead of for one more."""
    full, piece = Full(0, [], 0), _largest(most)
    while piece >= GRANULE and full.given <= most:
        _empty(process, full)
        code, number = process.take(door, full.given + piece)
        if code:
            full.code = code
            piece //= 2
        else:
            full.given += piece
            full.numbers = [number]
    if full.given and not full.numbers:
        code, number = process.take(door, full.given)
        full.numbers = [] if code else [number]
    return full


def rows(driver: Driver) -> Iterator[Row]:
    programs.program("doors")
    with tenancy(driver) as tenant, overhead.probe(driver, "watcher") as watcher:
        watcher.ask("context")
        yield Row("quota", tenant.memory_bytes, "bytes", "of a tenant without a daemon")
        yield from _plain(driver, tenant, watcher)
        for way in WAYS:
            yield _by(tenant, way)
        yield Row("said to the daemon", len(tenant.messages), detail=tuple(tenant.messages))


def _plain(driver: Driver, tenant: Tenancy, watcher: Child) -> Iterator[Row]:
    """Each door in a process of its own: what one leaves behind is not the next one's."""
    for door in DOORS:
        try:
            with Doors(tenant, PLAIN) as process:
                yield from _door(Account(driver, tenant, watcher, process), door)
        except (NotMeasured, ProbeFailed, ValueError) as error:
            yield Row(door, missing=str(error))


def _door(account: Account, door: str) -> Iterator[Row]:
    process, most = account.process, account.tenant.memory_bytes
    room, before = process.free(), account.read()
    if not _refused(process, door, most):
        yield Row.claim(f"{door}: more than the quota is refused", False, "it was given")
        return
    full = _filled(process, door, most)
    name = f"{door}: all of {quantity(room, 'bytes')} is given, and not a granule more"
    yield Row.claim(name, _holds(door, room, full), f"given {full.given}, then {full.code}")
    yield Row(f"{door}: not given", room - full.given, "bytes", "at the first refused granule")
    yield from account.grown(door, before)
    _empty(process, full)
    process.trim()
    back = process.free()
    yield Row.claim(f"{door}: given back, it is free again", back == room, f"{back} of {room}")
    yield from account.kept(door, before)


def _by(tenant: Tenancy, way: str) -> Row:
    """One row for a way: the doors that did not hold by it."""
    lost = []
    try:
        with Doors(tenant, way) as process:
            for door in DOORS:
                said = _lost(process, door, tenant.memory_bytes)
                lost += [f"{door}: {said}"] if said else []
    except (NotMeasured, ProbeFailed, ValueError) as error:
        return Row(f"{way}: every door", missing="; ".join([*lost, str(error)]))
    return Row.claim(f"{way}: every door gives the quota and not more", not lost, "; ".join(lost))


def _lost(process: Doors, door: str, most: int) -> str:
    """Return in what `door` does not hold, "" where it does."""
    room = process.free()
    if not _refused(process, door, most):
        return "more than the quota was given"
    full = _filled(process, door, most)
    _empty(process, full)
    process.trim()
    if not _holds(door, room, full):
        return f"of {room} free {full.given} were given, then {full.code}"
    back = process.free()
    return "" if back == room else f"{room - back} bytes were not given back"


def _refused(process: Doors, door: str, most: int) -> bool:
    """Whether one piece of more than the quota is refused: before anything fills a card."""
    code, number = process.take(door, most + GRANULE)
    if not code:
        process.give(number)
    return code != 0


def _filled(process: Doors, door: str, most: int) -> Full:
    return (grow if door in ONE_AT_A_TIME else fill)(process, door, most)


def _holds(door: str, room: int, full: Full) -> bool:
    coarse = COARSE_BYTES.get(door.removesuffix("_ptsz"), 2 * GRANULE)
    return 0 <= room - full.given < coarse and full.code == OUT_OF_MEMORY


def _empty(process: Doors, full: Full) -> None:
    while full.numbers:
        process.give(full.numbers.pop())


def _largest(most: int) -> int:
    return 1 << (most.bit_length() - 1)


@dataclass(frozen=True)
class Seen:
    """One moment: what is charged, what NVML says of the process, what another sees as free."""

    charged: Held
    process: int | None
    free: int


def seen(driver: Driver, tenant: Tenancy, watcher: Child, pid: int) -> Seen:
    """Look at process `pid` of `tenant`; `watcher` is a process on the bare driver."""
    claims = [claim for claim in tenant.status.claims(1) if claim.pid == pid]
    shown = overhead.card(watcher, driver)
    own = [entry["bytes"] for entry in shown["processes"] if entry["pid"] == pid]
    free = watcher.ask("info")["free"]
    return Seen(claims[0].held[0] if claims else Held(), own[0] if own else None, free)


@dataclass
class Account:
    """The three accounts of one process of the tenant."""

    driver: Driver
    tenant: Tenancy
    watcher: Child
    process: Doors

    def read(self) -> Seen:
        return seen(self.driver, self.tenant, self.watcher, self.process.process.pid)

    def grown(self, door: str, before: Seen) -> Iterator[Row]:
        now = self.read()
        charged = now.charged.held_bytes - before.charged.held_bytes
        yield Row(f"{door}: charged", charged, "bytes", _kinds(before.charged, now.charged))
        yield from self._driver(door, before, now, charged)

    def _driver(self, door: str, before: Seen, now: Seen, charged: int) -> Iterator[Row]:
        if before.process is None or now.process is None:
            yield Row(f"{door}: NVML, of the process", missing="NVML does not list the process")
        else:
            more = now.process - before.process
            note = f"beyond what is charged: {more - charged} bytes"
            yield Row(f"{door}: NVML, of the process", more, "bytes", note)
        taken = before.free - now.free
        note = f"beyond what is charged: {taken - charged} bytes"
        yield Row(f"{door}: the card has less free by", taken, "bytes", note)

    def kept(self, door: str, before: Seen) -> Iterator[Row]:
        """What the driver keeps once all is given back."""
        now = self.read()
        charged = now.charged.held_bytes - before.charged.held_bytes
        kept = before.free - now.free
        yield Row(f"{door}: kept by the driver", kept, "bytes", f"{charged} bytes are charged")


def _kinds(before: Held, now: Held) -> str:
    grown = [new - old for old, new in zip(before.kinds, now.kinds, strict=True)]
    told = [f"{KINDS[kind]} {size}" for kind, size in enumerate(grown) if size]
    return f"bytes by kind: {', '.join(told) or 'none'}"
