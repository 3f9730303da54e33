# SPDX-License-Identifier: Apache-2.0
"""The scheduler of one machine, with its tenants announced as gpushared does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.daemon import scheduler_sync as schedule_message
from gpushare.daemon.policy import ShareRequest, divide_compute
from gpushare.daemon.scheduler_sync import Scheduler, SchedulerCommand, SchedulerLost
from gpushare.install import InstallSource
from tools.bench.turns import BenchError

from .scenario import TenantSpec


@dataclass
class Scheduling:
    """A running scheduler, and the tenants that it is to know."""

    _scheduler: Scheduler
    _directories: dict[str, int] = field(default_factory=dict)
    _claims: list[ShareRequest] = field(default_factory=list)
    _uuid: str = ""

    @classmethod
    @contextmanager
    def started(cls, socket: Path, slow: float, switch_us: int) -> Iterator[Scheduling]:
        """Start one, and end it afterwards."""
        program = InstallSource.of_package().programs / "gpushare-scheduler"
        try:
            scheduler = Scheduler.start(SchedulerCommand(program, socket, round(slow), switch_us))
        except SchedulerLost as error:
            raise BenchError(str(error)) from error
        try:
            yield cls(scheduler)
        finally:
            scheduler.end()
            scheduler.close()

    def add(self, tenant: TenantSpec, uuid: str, directory: int) -> None:
        """Note a tenant of the card, whose pages are in the directory open at `directory`."""
        self._directories[tenant.name], self._uuid = directory, uuid
        self._claims.append(
            ShareRequest(tenant.name, tenant.policy, tenant.cores, 1, tenant.class_, 0)
        )

    def tell(self) -> None:
        """Announce all of them to the scheduler."""
        shares = divide_compute(self._claims)
        self._send(schedule_message.message(schedule_message.HELLO))
        for name, directory in self._directories.items():
            parts = [(self._uuid, shares[name])]
            self._send(schedule_message.message(schedule_message.TENANT, name, parts), [directory])
        self._send(schedule_message.message(schedule_message.COMPLETE))

    def _send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            answer = self._scheduler.send(message, descriptors)
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
