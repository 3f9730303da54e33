# SPDX-License-Identifier: Apache-2.0
"""A node with tenants whose processes really run, and whose GPU memory is a driver's list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpushare import abi
from gpushare.daemon.cards.driver_client import DriverSample, ProcessUse
from gpushare.daemon.eviction import preconditions, steps
from gpushare.daemon.eviction import worker_main as api
from gpushare.daemon.eviction.preconditions import CannotEvict
from gpushare.daemon.eviction.steps import EvictionFailed
from gpushare.daemon.identity import processes
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.store.record import EvictionRecord, TenantRecord
from gpushare.quota.request_policy import IdlePolicy

from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .inline import InlineWorker
from .operations import opened
from .registered import hold, life, register


@dataclass
class EvictableTenant:
    """A tenant with some processes, each of which holds a part of its memory."""

    node: FakeDaemon
    key: str
    programs: list[FakeProcess]

    @property
    def pids(self) -> list[int]:
        return sorted(program.pid for program in self.programs)

    @property
    def record(self) -> TenantRecord:
        return self.node.ledger.entries[self.key]

    @property
    def eviction(self) -> EvictionRecord | None:
        return self.record.eviction

    @property
    def state(self) -> str:
        return self.eviction.state if self.eviction else ""

    @property
    def goes_on(self) -> bool:
        """Whether all processes run, as if it had never been evicted."""
        states = {self.node.checkpoints.state(pid) for pid in self.pids}
        return (self.eviction, self.is_gated, states) == (None, False, {api.RUNNING})

    def share(self, number: int) -> None:
        """Have its library note that a process exports or imports memory."""
        status = self.node.tenants.pages[self.key].status.fd
        os.pwrite(status, b"\1", abi.status_process_offset(number) + abi.PROCESS_SHARES)

    @property
    def is_gated(self) -> bool:
        grant = self.node.tenants.pages[self.key].grant
        return bool(grant._u32(abi.GRANT_HEADER_EVICTED).value)

    @property
    def card(self) -> str:
        return self.record.allocations[0].uuid


@dataclass
class EvictableNode:
    """The node, whose driver lists the memory of what is not checkpointed."""

    node: FakeDaemon
    tenants: list[EvictableTenant] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)  # bytes by pid
    lives: ExitStack = field(default_factory=ExitStack)  # the locks on the processes' records

    @property
    def driver(self) -> FakeDriver:
        return self.node.driver

    def tenant(
        self, *, gib: int = 4, programs: int = 1, held_gib: int = 0, **quota: str
    ) -> EvictableTenant:
        grant = opened(self.node, memory=f"{gib}GiB", **quota)
        family = [FakeProcess() for _ in range(programs)]
        first = family[0]
        made = EvictableTenant(self.node, grant["key"], family)
        self.tenants.append(made)
        bound = {"state": "bound", "pid": first.pid, "starttime": first.starttime}
        self.node.decide.run(
            lambda: self.node.ledger.change(made.key, **bound, cgroup=f":/evictable/{made.key}")
        )
        each = (held_gib or gib) * GIB // programs
        status = self.node.tenants.pages[made.key].status.fd
        for number, program in enumerate(family):
            register(status, number, program.pid, program.starttime)
            self.lives.enter_context(life(status, number))
            hold(status, number, each)
            self.held[program.pid] = each
        self.look()
        return made

    def evicted(self, **asked: Any) -> EvictableTenant:
        made = self.tenant(**asked)
        self.node.evictions.evict(made.key)
        return made

    def refuses(self, tenant: EvictableTenant, why: str) -> None:
        """Try to evict, and have that refused or undone with this reason."""
        with pytest.raises((CannotEvict, EvictionFailed), match=why):
            self.node.evictions.evict(tenant.key)

    def look(self) -> None:
        """Have the driver list what is on its cards, and look at it."""
        self.list_uses()
        self.node.sampler.look()

    def list_uses(self) -> None:
        """Have the driver list what is on its cards."""
        uses: dict[str, tuple[ProcessUse, ...]] = {}
        states = self.node.checkpoints.states
        for tenant in self.tenants:
            if tenant.key not in self.node.ledger.entries:
                continue
            for pid in tenant.pids:
                if states.get(pid, api.RUNNING) in {api.RUNNING, api.LOCKED}:
                    use = ProcessUse(pid, self.held[pid])
                    uses[tenant.card] = (*uses.get(tenant.card, ()), use)
        self.driver.uses = uses

    def capacity(self, index: int = 0) -> CardCapacity:
        return self.node.decide.run(self.node.accounts.capacities)[index]

    def settle(self) -> None:
        """Have the workers do what they were given."""
        self.node.decide.run(lambda: None)

    def end(self, tenant: EvictableTenant) -> None:
        for program in tenant.programs:
            program.kill()

    def configure(self, **changes: object) -> None:
        config = self.node.node.config
        self.node.node.config = replace(config, evict=replace(config.evict, **changes))  # type: ignore[arg-type]

    def idle(self, *tenants: EvictableTenant) -> None:
        """Have `idle.action: evict`, and these tenants be idle, the first for the longest."""
        terms = replace(self.node.node.config.terms, idle=IdlePolicy(60, "evict"))
        self.node.node.config = replace(self.node.node.config, terms=terms)
        self.node.observed.idle = {one.key: float(number) for number, one in enumerate(tenants)}

    def restart(self) -> None:
        """Have another daemon take over what the ledger says; the tenants' pages stay open."""
        self.node.reopen_ledger()
        self.node.evictions.close(5)
        decide = self.node.decide
        assert isinstance(decide, InlineWorker)
        self.node.evict = InlineWorker(decide.turns, "evict")
        self.node.compose()


@contextmanager
def running(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[EvictableNode]:
    """Yield `node`, whose tenants end with the block."""
    driver, made = node.driver, EvictableNode(node)

    def members(cgroup: str, _pid: int, _cgroups: object) -> list[processes.Process]:
        key = cgroup.rpartition("/")[2]
        pids = [pid for one in made.tenants if one.key == key for pid in one.pids]
        found = map(processes.find_process, pids)
        return [one for one in found if one is not None]

    own = processes.cgroups_of

    def cgroups_of(pid: int) -> dict[str, str]:
        key = next((one.key for one in made.tenants if pid in one.pids), None)
        return own(pid) if key is None else {"": f"/evictable/{key}"}

    monkeypatch.setattr(preconditions, "machine_memory", lambda _: 1 << 40)
    monkeypatch.setattr(preconditions, "least_memory", lambda *_: None)
    monkeypatch.setattr(processes, "members", members)
    monkeypatch.setattr(processes, "cgroups_of", cgroups_of)
    monkeypatch.setattr(steps, "GRACE_SECONDS", 0.0)
    known = driver.figures

    def figures() -> DriverSample:
        made.list_uses()
        return known()

    monkeypatch.setattr(driver, "figures", figures)
    with made.lives:
        yield made
    for tenant in made.tenants:
        made.end(tenant)
