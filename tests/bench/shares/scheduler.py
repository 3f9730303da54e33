# SPDX-License-Identifier: Apache-2.0
"""The scheduler of one machine, told of its tenants as gpushared tells it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.daemon.compute import message as schedule_message
from gpushare.daemon.compute.process import Command, Scheduler, SchedulerLost
from gpushare.daemon.policy.compute import shares
from gpushare.daemon.policy.share import Claim, Share
from gpushare.install import Source
from tests.bench.turns import BenchError

from .scenario import Tenant


@dataclass
class Scheduling:
    """A running scheduler, and who it is to be told of."""

    _scheduler: Scheduler
    _directories: dict[str, int] = field(default_factory=dict)
    _cards: dict[str, Sequence[str]] = field(default_factory=dict)
    _claims: dict[str, list[Claim]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def started(cls, socket: Path, slow: float) -> Iterator[Scheduling]:
        """Start one, and end it afterwards."""
        program = Source.of_package().programs / "gpushare-scheduler"
        try:
            scheduler = Scheduler.start(Command(program, socket, round(slow)))
        except SchedulerLost as error:
            raise BenchError(str(error)) from error
        try:
            yield cls(scheduler)
        finally:
            scheduler.end()
            scheduler.close()

    def add(self, tenant: Tenant, uuids: Sequence[str], directory: int) -> None:
        """Note a tenant whose pages are in the directory open at `directory`."""
        self._directories[tenant.name] = directory
        self._cards[tenant.name] = uuids
        for uuid in uuids:
            claim = Claim(tenant.name, tenant.policy, tenant.cores, 1, tenant.class_, 0)
            self._claims.setdefault(uuid, []).append(claim)

    def tell(self) -> None:
        """Tell the scheduler of all of them."""
        by_card = {uuid: shares(claims) for uuid, claims in self._claims.items()}
        self._send(schedule_message.hello())
        for name, uuids in self._cards.items():
            parts: list[tuple[str, Share]] = [(uuid, by_card[uuid][name]) for uuid in uuids]
            self._send(schedule_message.tenant(name, parts), [self._directories[name]])
        self._send(schedule_message.complete())

    def _send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            answer = self._scheduler.tell(message, descriptors)
        except SchedulerLost as error:
            raise BenchError(str(error)) from error
        if answer.error:
            raise BenchError(f"the scheduler answers errno {answer.error}")

    def cpu_ns(self) -> int:
        """Return the processor time that it has had (proc(5), schedstat)."""
        return int(Path(f"/proc/{self._scheduler.pid}/schedstat").read_text().split()[0])

    def alive(self) -> bool:
        """Whether it still runs."""
        return Path(f"/proc/{self._scheduler.pid}/schedstat").exists()
