# SPDX-License-Identifier: Apache-2.0
"""Random evictions, restores, moves, tickets, ends, faults and restarts: none is promised twice.

The driver here is a dictionary. tests/system/test_evict_random.py does the same with real
processes, and looks at their memory.
"""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from gpushare.daemon.eviction import checkpoint_api as api
from gpushare.daemon.eviction.checkpoint_client import CheckpointError
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.queue import Applicant
from gpushare.daemon.store.ticket import TicketSource
from gpushare.errors import UserError

from . import evictable
from .evictable import EvictableNode, EvictableTenant
from .fakes import GIB, FakeDaemon

SEQUENCES = 30
STEPS = 25


class DaemonKilled(Exception):
    """gpushared is killed here, between two calls of the driver."""


class Sequence:
    """One sequence of random steps on a node of two cards."""

    def __init__(self, made: EvictableNode, seed: int) -> None:
        self.made = made
        self.node = made.node
        self.chance = random.Random(seed)
        self.kills = 0
        self.is_killed = False
        made.configure(offline=True, min_resident_seconds=0)
        self.node.checkpoints.during = self._during

    def _during(self, _name: str, _pid: int) -> None:
        if self.kills and self.chance.random() < 0.3:
            self.kills, self.is_killed = 0, True
        if self.is_killed:  # nor is anything else called
            raise DaemonKilled

    @property
    def living(self) -> list[EvictableTenant]:
        return [one for one in self.made.tenants if one.key in self.node.ledger.entries]

    def step(self) -> None:
        steps = [self.start, self.evict, self.evict, self.restore, self.move, self.want]
        steps += [self.end, self.fault, self.kill, self.take, self.cancel]
        with contextlib.suppress(UserError, DaemonKilled):
            self.chance.choice(steps)()
        self.made.settle()
        if self.is_killed:
            self.restart()
        self.node.evictions.look()  # as it does now and then: for what a fault has left
        self.made.settle()
        if self.is_killed:  # in what that look did
            self.restart()
        self.made.look()
        self.check()

    def start(self) -> None:
        if len(self.living) < 6:
            kind = self.chance.choice(("online", "offline"))
            size = self.chance.choice((20, 50, 90))
            self.made.tenant(gib=size, programs=self.chance.choice((1, 1, 3)), class_=kind)

    def evict(self) -> None:
        if self.living:
            self.node.evictions.evict(
                self.chance.choice(self.living).key, held=self.chance.random() < 0.2
            )

    def restore(self) -> None:
        if self.living:
            self.node.evictions.restore(self.chance.choice(self.living).key)

    def move(self) -> None:
        if self.living:
            self.node.evictions.move(self.chance.choice(self.living).key, self.chance.choice("01"))

    def want(self) -> None:
        for tenant in self.living:
            self.node.evictions.want(tenant.key)

    def end(self) -> None:
        if self.living:
            self.made.end(self.chance.choice(self.living))
            self.node.decide.run(lambda: release.release_ended(self.node))

    def fault(self) -> None:
        if not self.living:
            return
        pid = self.chance.choice(self.chance.choice(self.living).pids)
        name = self.chance.choice(("lock", "checkpoint", "restore"))
        code = self.chance.choice((2, 3, 600, 801))
        self.node.checkpoints.faults[name, pid] = CheckpointError(f"{name}: {code}", code)
        if self.chance.random() < 0.2:
            self.node.checkpoints.leaves[name, pid] = api.FAILED

    def take(self) -> None:
        """Have a start wait, of any class and size."""
        kind = self.chance.choice(("online", "offline"))
        size = self.chance.choice(("20GiB", "60GiB", "120GiB"))
        source = TicketSource({"memory": size, "class": kind}, {}, {})
        applicant = Applicant("job", 0, os.getpid(), is_rootless=False)
        if len(self.node.ledger.tickets) < 4:
            self.node.decide.run(lambda: self.node.tickets.take(applicant, source))

    def cancel(self) -> None:
        tickets = list(self.node.ledger.tickets)
        if tickets:
            identity = self.chance.choice(tickets)
            self.node.decide.run(lambda: self.node.tickets.cancel(identity, 0))

    def kill(self) -> None:
        self.kills = 1

    def restart(self) -> None:
        self.is_killed = False
        self.made.restart()
        for record in self.node.ledger.entries.values():
            if (pages := self.node.tenants.pages.get(record.key)) is not None:
                release._write_again(record, pages)
        self.node.evictions.settle()
        self.made.settle()

    def check(self) -> None:
        """Whatever happened, memory is counted once, and each process is where the ledger says."""
        for capacity in self.node.decide.run(self.node.capacities):
            assert capacity.allocated_bytes <= capacity.card.memory_bytes
        on_card = {card.uuid: 0 for card in self.node.loaded().cards}
        for tenant in self.living:
            states = {self.node.checkpoints.state(pid) for pid in tenant.pids}
            eviction = tenant.eviction
            assert tenant.is_gated == (eviction is not None)
            if eviction is None:
                assert states == {api.RUNNING}
            elif eviction.state == "evicted":
                assert states == {api.CHECKPOINTED}
            else:
                assert eviction.state == "failed"
            if eviction is None or eviction.state == "failed":
                on_card[tenant.card] += tenant.record.allocations[0].memory_bytes
        assert max(on_card.values()) <= 140 * GIB
        waiting = self.node.observed.waiting
        assert all(self.node.ledger.entries[key].eviction for key in waiting)


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_any_sequence_leaves_the_ledger_exact(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    made = evictable.make(node, monkeypatch)
    sequence = Sequence(made, seed)
    try:
        with made.lives:
            for _ in range(STEPS):
                sequence.step()
    finally:
        for tenant in made.tenants:
            made.end(tenant)
