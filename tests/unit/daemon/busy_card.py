# SPDX-License-Identifier: Apache-2.0
"""A card on which several tenants do all that they may, as awkwardly as they can.

Memory is charged before the driver is asked and given back after, as the interposer does it; each
of these is a step of its own, and steps are taken before the driver is asked, between one process
and the next that it tells of, and after. Processes come with contexts that their account knows of
a second later, hand what they have to each other, map what others made, end and leave records and
clients of the driver behind, and their numbers are given to others.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpushare import abi
from gpushare.daemon.audit.audit import Audit
from gpushare.daemon.audit.judge import Verdict
from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverGeneration,
    DriverSample,
    ProcessUse,
)
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.pid_resolver import PidResolver
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.observed import Shortfall, TenantOnCard
from gpushare.daemon.pages import tenants
from gpushare.daemon.pages.tenants import CardGrant, Pages
from gpushare.daemon.store.record import CardAllocation, TenantRecord

from . import fakes, registered
from .fakes import GIB, MIB, FakeDaemon, FakeDriver

CARD = fakes.card().uuid
CONTEXT = 300 * MIB  # what one takes, as was measured
MOST_LATE = 6  # steps until an account knows of a context, more or less


@dataclass
class BusyProcess:
    """A process. `bytes` is what the driver has of it, the other sizes what it says."""

    process: Process
    number: int  # of its record
    bytes: int = CONTEXT
    buffers: int = 0
    managed: int = 0
    mapped: int = 0
    maker: BusyProcess | None = None  # of what it maps
    exported: int = 0
    contexts: int = 0
    todo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def charged(self) -> int:
        return self.buffers + self.managed + self.contexts * CONTEXT


class Recorder:
    """A freezer that does nothing, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def freeze(self, key: str, by: str, why: str) -> None:
        assert by == "audit"
        assert why
        self.calls.append(("hold", key))

    def release(self, key: str, by: str) -> bool:
        assert by == "audit"
        self.calls.append(("release", key))
        return True

    def kill(self, key: str, why: str, killed: Callable[[], None]) -> None:
        assert why
        self.calls.append(("kill", key))
        killed()


class BusyTenant:
    """One container: its pages, and what runs in it."""

    def __init__(self, world: BusyCard, key: str, memory: int, most: int, programs: int) -> None:
        self.world, self.key, self.limit, self.programs_most = world, key, memory, programs
        limit = most if most > memory else None
        allocation = CardAllocation(CARD, memory, memory_limit_bytes=limit)
        self.cgroup = f"/x/{key}"
        entry = TenantRecord(
            key=key,
            state="bound",
            id=f"id-{key}",
            name=f"tenant-{key[0]}",
            pid=1,
            starttime=1,
            cgroup=f":{self.cgroup}",
            allocations=(allocation,),
        )
        world.node.ledger.add(entry)
        directory = world.node.mounts.make(key, size_bytes=1 << 20)
        self.pages = Pages.make(directory, key, [CardGrant(CARD, memory, CONTEXT, 0)])
        world.node.tenants.add(key, self.pages)
        self.programs: list[BusyProcess] = []
        self.free = list(range(400, -1, -1))
        self.bursts = False  # it starts many processes at once, now and then
        self.passes = False  # two processes hand everything to each other, all the time
        self.high = 0

    @property
    def entry(self) -> TenantRecord:
        return self.world.node.ledger.entries[self.key]

    @property
    def room(self) -> int:
        """What the interposer would give now."""
        said = [program.charged for program in self.programs]
        exported = sum(one.exported for one in self.programs)
        orphaned = max(0, max((one.mapped for one in self.programs), default=0) - exported)
        return self.limit - sum(said) - orphaned - self.pages.grant.overhead_bytes(0)

    def write(self, program: BusyProcess) -> None:
        """Write the account of one process."""
        kinds = {
            abi.KIND_MANAGED: program.managed,
            abi.KIND_CONTEXT: program.contexts * CONTEXT,
        }
        registered.hold(
            self.pages.status.fd,
            program.number,
            program.charged,
            contexts=program.contexts,
            kinds=kinds,
            exported_bytes=program.exported,
            imported_bytes=program.mapped,
        )

    def register(self, program: BusyProcess) -> None:
        fd, process = self.pages.status.fd, program.process
        registered.register(fd, program.number, process.namespaced_pid, process.starttime)
        self.high = max(self.high, program.number + 1)
        os.pwrite(fd, abi.STATUS_HEADER.pack(abi.ABI_MAGIC, abi.ABI_VERSION, self.high, 0, 0), 0)

    def unmap(self, program: BusyProcess) -> None:
        """Have `program` let go of what it maps: its maker may free it then."""
        maker, program.maker, program.mapped = program.maker, None, 0
        if maker in self.programs and maker is not None:
            maker.exported = 0
            self.write(maker)

    def unregister(self, program: BusyProcess) -> None:
        if program.maker is not None:
            self.unmap(program)
        program.buffers = program.managed = program.exported = program.contexts = 0
        self.write(program)
        place = abi.status_process_offset(program.number)
        os.pwrite(self.pages.status.fd, bytes(abi.PROCESS_BYTES), place)
        self.free.append(program.number)


class BusyCard(FakeDriver):
    """The driver, and all processes on its card."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.tenants: list[BusyTenant] = []  # that do something
        self.all_tenants: list[BusyTenant] = []
        self.there: dict[int, tuple[Process, str]] = {}  # that go on, and their cgroups
        self.clients: dict[int, int] = {}  # what the driver lists: bytes by number
        self.left: dict[int, BusyProcess] = {}  # clients whose process has ended
        self.version = 0
        self.noise = True
        self.more = 0  # in use, and of no process
        self.pages_out = True  # the driver moves managed memory to the host, now and then
        self.paged_out = False
        self.shares = True  # processes map what others made
        self.now_ns = 0
        self.recorder = Recorder()
        self.done: list[tuple[str, str]] = []
        #: Its account says another thing each time.
        self.forger: tuple[BusyTenant, BusyProcess] | None = None
        self._next = 1000
        self._ticks = 1
        self.node: FakeDaemon
        self.audit: Audit

    def settle(self, node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the daemon's side: `node`, whose driver this is."""
        self.node = node
        truth = node.sampler
        truth._changed = truth.settle  # what a changed driver is, is understood at once
        truth.resolver = PidResolver(lambda pid: pid in self.clients and pid in self.there)
        monkeypatch.setattr(node.decide, "submit", lambda job: job())
        monkeypatch.setattr(tenants, "COSTLY_SECONDS", math.inf)  # time passes faster than it does
        monkeypatch.setattr(node.freezing, "submit", lambda job: job())
        self.audit = node.audit = Audit(node, self.recorder)  # type: ignore[arg-type]
        node.node.loaded().contexts.keep(fakes.card(), CONTEXT)
        monkeypatch.setattr(PidResolver, "_open", lambda _, pid: self._process(pid))
        monkeypatch.setattr(PidResolver, "_note_ended", self._note_ended())
        monkeypatch.setattr(processes, "cgroups_of", self._cgroups)
        monkeypatch.setattr(processes, "find_process", self._process)
        monkeypatch.setattr(processes, "may_map", lambda *_: True)
        monkeypatch.setattr(processes, "pids_of", self._pids_of)
        monkeypatch.setattr(processes, "name_of", lambda _: "program")

    def tenant(self, key: str, gib: int, most_gib: int = 0, programs: int = 8) -> BusyTenant:
        made = BusyTenant(self, key * 16, gib * GIB, max(gib, most_gib) * GIB, programs)
        self.tenants.append(made)
        self.all_tenants.append(made)
        return made

    # What the daemon sees of it

    def sample(self, *, brief: bool = False) -> DriverSample:
        del brief
        self._steps(4)
        if self.noise and self.random.random() < 0.01:
            raise DriverError("NVML: timeout")
        found: list[ProcessUse] = []
        moves = min(0.7, 12 / max(1, len(self.clients)))
        for pid in list(self.clients):
            if self.noise and self._is(moves):
                self._steps(1)
                self._passed()
            if pid in self.clients:
                found.append(ProcessUse(pid, self.clients[pid]))
        found = [self._garbled(use) for use in found if not (self.noise and self._is(0.002))]
        uses = {CARD: tuple(found)}
        lost = {}
        if self.noise and self._is(0.005):
            uses, lost = {}, {CARD: "GPU is lost"}
        if self.noise and self._is(0.005):  # another driver, whose figures are of no process
            self.version += 1
            uses = {CARD: tuple(ProcessUse(use.pid, 100 * GIB) for use in found)}
        used = sum(self.clients.values()) + self.more + self._managed() - self._doubled()
        self._steps(4)
        return DriverSample(
            0,
            uses,
            lost,
            generation=DriverGeneration(str(self.version), ((0, CARD),)),
            used={CARD: used},
        )

    def _programs(self) -> list[BusyProcess]:
        return [program for tenant in self.all_tenants for program in tenant.programs]

    def _managed(self) -> int:
        """Managed memory is on the card and in no process's figure; now and then in the host."""
        if self.pages_out and self._is(0.02):
            self.paged_out = not self.paged_out
        return 0 if self.paged_out else sum(program.managed for program in self._programs())

    def _doubled(self) -> int:
        """What the driver lists for processes that map it, beside the one that made it."""
        there = self._programs()
        return sum(one.mapped for one in there if one.maker is not None and one.maker.exported)

    def _garbled(self, use: ProcessUse) -> ProcessUse:
        return replace(use, bytes=None) if self.noise and self._is(0.002) else use

    def _process(self, pid: int) -> Process | None:
        return self.there[pid][0] if pid in self.there else None

    def _cgroups(self, pid: int) -> Mapping[str, str]:
        return {"": self.there[pid][1]} if pid in self.there else {}

    def _pids_of(self, cgroup: str, _pid: int, _cgroups: Any) -> Iterator[int]:
        return iter([pid for pid, (_, path) in self.there.items() if f":{path}" == cgroup])

    def _note_ended(self) -> Callable[[PidResolver], None]:
        def note(sightings: PidResolver) -> None:
            for pid, seen in list(sightings._seen.items()):
                if seen.process is not None and self._process(pid) != seen.process:
                    sightings._end(pid)

        return note

    # What the tenants do

    def look(self) -> Mapping[TenantOnCard, Verdict]:
        """Let some time pass in which much happens, and look."""
        self._steps(self.random.randrange(12))
        for tenant in self.tenants:
            if len(tenant.programs) > tenant.programs_most and self._is(0.2):
                for program in tenant.programs[tenant.programs_most :]:
                    self._end(tenant, program)
        self.now_ns += self.random.randrange(90, 400) * 10**6
        if self.noise and self._is(0.02):  # as it does where non-tenants have filled the card
            self._report_shortfall()
        truth = self.node.sampler
        truth.look()
        self.audit.look(self.now_ns)
        verdicts = self.audit._judge.verdicts
        for (key, _), verdict in verdicts.items():
            self.done += [(action, key) for action in verdict.actions]
        return verdicts

    def _report_shortfall(self) -> None:
        """Have a tenant lack memory within its quota, for some seconds."""
        place = self.random.choice(self.tenants).key, CARD
        others = self.node.observed.shortfalls
        self.node.observed.shortfalls = {**others, place: Shortfall(GIB, 0.0, self.now_ns)}

    def _is(self, chance: float) -> bool:
        return self.random.random() < chance

    def _forge(self) -> None:
        if self.forger is not None:
            tenant, program = self.forger
            program.buffers = self.random.choice((0, 200 * GIB))
            tenant.write(program)

    def _steps(self, count: int) -> None:
        self._forge()
        for _ in range(count):
            self._step(self.random.choice(self.tenants))

    def _step(self, tenant: BusyTenant) -> None:
        if tenant.passes:
            self._pass(tenant)
            return
        if self._is(0.004):
            self._change_limit(tenant)
        if tenant.bursts and self._is(0.0006):
            for _ in range(min(300, len(tenant.free))):
                self.start(tenant)
        if len(tenant.programs) < tenant.programs_most and self._is(0.12):
            self.start(tenant)
        if not tenant.programs:
            return
        program = self.random.choice(tenant.programs)
        if program.todo:
            program.todo.pop(0)()
            tenant.write(program)
            return
        act = self.random.choices(
            (self._take, self._give, self._hand_over, self._end, self._manage, self._map),
            (8, 4, 8, 1, 2, 1),
        )[0]
        act(tenant, program)
        tenant.write(program)

    def _pass(self, tenant: BusyTenant) -> None:
        """Hand all that the quota leaves from one process to the other."""
        if len(tenant.programs) < tenant.programs_most:
            self.start(tenant)
            return
        holder, _ = sorted(tenant.programs, key=lambda program: -program.buffers)
        if not holder.buffers:
            self._take(tenant, holder)
            holder.todo.pop()()
        self._hand_over(tenant, holder)

    def start(self, tenant: BusyTenant) -> BusyProcess:
        """Start a process that makes a context."""
        pid = self._number()
        self._ticks += 1
        process = Process(pid, self._ticks, 1, pid)
        self.there[pid] = process, tenant.cgroup
        program = BusyProcess(process, tenant.free.pop())
        tenant.register(program)
        tenant.write(program)
        tenant.programs.append(program)
        if tenant.room >= CONTEXT:
            program.contexts = 1
            tenant.write(program)
        else:  # made through an allocation path that was unknown before
            program.todo = [lambda: None] * self.random.randrange(MOST_LATE)
            program.todo.append(lambda: setattr(program, "contexts", 1))
        self.clients[pid] = program.bytes
        return program

    def _number(self) -> int:
        """Return a number for a process: a new one, or one of those that have ended."""
        # The kernel gives no number again between two samples.
        ended = {pid for pid, one in self.node.sampler.resolver._seen.items() if not one.process}
        idle = [pid for pid in self.left if pid not in self.there and pid in ended]
        if idle and self._is(0.2):
            # The receiver is no client of the driver; its number is in the list nevertheless.
            pid = self.random.choice(idle)
            self._ticks += 1
            tenant = self.random.choice(self.tenants)
            self.there[pid] = Process(pid, self._ticks, 1, pid), tenant.cgroup
        self._next += 1
        return self._next

    def _passed(self) -> None:
        for tenant in self.tenants:
            if tenant.passes:
                self._pass(tenant)

    def _has(self, program: BusyProcess, change: int) -> None:
        program.bytes += change
        if program.process.pid in self.clients:
            self.clients[program.process.pid] = program.bytes

    def _take(self, tenant: BusyTenant, program: BusyProcess) -> None:
        room = tenant.room
        if room <= 0:
            return
        size = room if self._is(0.3) else self.random.randrange(room) + 1
        program.buffers += size
        program.todo.append(lambda: self._has(program, size))

    def _give(self, tenant: BusyTenant, program: BusyProcess) -> None:
        del tenant
        if program.exported:
            return
        size = program.buffers if self._is(0.5) else self.random.randrange(program.buffers + 1)
        self._has(program, -size)
        program.todo.append(lambda: setattr(program, "buffers", program.buffers - size))

    def _hand_over(self, tenant: BusyTenant, program: BusyProcess) -> None:
        """Give everything back, and have another process take as much at once."""
        others = [one for one in tenant.programs if one is not program]
        other = self.random.choice(others or [program])
        size = program.buffers
        if other is program or other.todo or not size or program.exported:
            return
        self._has(program, -size)
        program.buffers = 0
        tenant.write(program)
        if tenant.room >= size:
            other.buffers += size
            tenant.write(other)
            self._has(other, size)

    def _manage(self, tenant: BusyTenant, program: BusyProcess) -> None:
        """Managed memory, of which the driver says nothing, and buffers in its place."""
        if program.exported:
            return
        if program.managed:
            size, program.managed = program.managed, 0
            tenant.write(program)
            if tenant.room >= size:
                program.buffers += size
                self._has(program, size)
        elif tenant.room > 0:
            program.managed = self.random.randrange(tenant.room) + 1

    def _map(self, tenant: BusyTenant, program: BusyProcess) -> None:
        """Map what another process of the tenant made, or let it go.

        The driver lists it for both.
        """
        if program.maker is not None:
            self._has(program, -program.mapped)
            tenant.unmap(program)
            return
        others = [one for one in tenant.programs if one is not program and one.buffers]
        makers = [one for one in others if not (one.todo or one.exported)]
        if not makers or not self.shares:
            return
        maker = self.random.choice(makers)
        maker.exported = maker.buffers
        tenant.write(maker)
        program.maker, program.mapped = maker, maker.buffers
        tenant.write(program)
        self._has(program, program.mapped)

    def _end(self, tenant: BusyTenant, program: BusyProcess) -> None:
        """End, and perhaps leave a client of the driver, and a record for a while."""
        if program.exported:  # what outlives its maker is not told from what others export
            return
        pid = program.process.pid
        tenant.programs.remove(program)
        del self.there[pid]
        for other in list(self.left):
            if self._is(0.5):
                del self.left[other], self.clients[other]
                self.there.pop(other, None)
        if self._is(0.3):
            self.left[pid] = program
        else:
            del self.clients[pid]
        tenant.unregister(program)

    def _change_limit(self, tenant: BusyTenant) -> None:
        """Grant more or less burst memory, or change the quota, whatever is used."""
        allocation = tenant.entry.allocations[0]
        most = allocation.burst_limit_bytes
        if most > allocation.quota_bytes:
            limit = self.random.randrange(allocation.quota_bytes, most + 1)
        else:
            limit = self.random.randrange(max(GIB, most // 2), most * 2)
            limit = min(limit, 100 * GIB)
            resized = (replace(allocation, quota_bytes=limit),)
            self.node.ledger.put(replace(tenant.entry, allocations=resized))
        self.node.limits.change(tenant.entry, 0, limit)
        tenant.limit = limit
