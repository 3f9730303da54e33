# SPDX-License-Identifier: Apache-2.0
"""Who has which part of which card, as the scheduler is told; and that there is a scheduler.

What it is to know is made anew from the ledger each time something has changed, and sent as far as
it differs from what it was told: a part may change for somebody else's sake. All of it happens on a
thread of its own, so that no container waits for it. When the scheduler ends it is started again at
once; until then each tenant holds itself to the part that its gate says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from gpushare.daemon.compute import message as schedule_message
from gpushare.daemon.compute import shares
from gpushare.daemon.compute.process import Command, Scheduler, SchedulerLost
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.policy import Share
from gpushare.daemon.service.worker import Worker
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.tenants import Pages

PROGRAM: Final = "gpushare-scheduler"
SOCKET: Final = "scheduler.sock"
# Between attempts: at once, and longer each time where it ends again soon.
_FIRST_WAIT_SECONDS: Final = 0.1
_LONGEST_WAIT_SECONDS: Final = 5.0
_STEADY_SECONDS: Final = 10.0

Parts = tuple[tuple[str, Share], ...]  # by the tenant's card number: UUID, and what it gets


def parts(node: Node) -> dict[str, Parts]:
    """Return what every tenant that runs and has a gate is to get of its cards, by key.

    Whole cards have no gate. One that is only reserved takes nobody's time yet, and one that is
    held still no more: its part is the others', and it is not asked why its work does not end.
    """
    running = [entry for entry in node.ledger.entries.values() if _is_scheduled(entry, node)]
    uuids = {holding.uuid for entry in running for holding in entry.holdings}
    by_card = {uuid: shares.of_card(uuid, node) for uuid in uuids}
    return {
        entry.key: tuple((one.uuid, by_card[one.uuid][entry.key]) for one in entry.holdings)
        for entry in running
        # The ledger may have changed meanwhile: then we are called again.
        if all(entry.key in by_card[one.uuid] for one in entry.holdings)
    }


def _is_scheduled(entry: Entry, node: Node) -> bool:
    return entry.shared and entry.state == "bound" and not node.freezer.is_held(entry.key)


class Schedule:
    """Keeps a scheduler running and told. `changed` and `check` may be called by any thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._worker = Worker("schedule")
        self._asked = False  # a change that comes before the last one is looked at goes with it
        # All below is that thread's.
        self._scheduler: Scheduler | None = None
        self._told: dict[str, tuple[Pages, Parts]] = {}
        self._refused: dict[str, str] = {}  # by key, why the scheduler would not have it
        self._started = 0.0
        self._wait_seconds = 0.0  # before it is started again
        self._waits = False
        self._closed = False

    def changed(self) -> None:
        """Tell what is new; returns at once."""
        if not self._asked:
            self._asked = True
            self._worker.submit(self._tell_changed)

    def check(self) -> None:
        """See that there is a scheduler that answers, and tell it everything; returns at once."""
        self._worker.submit(lambda: self._do(self._tell_all))

    def close(self, seconds: float) -> None:
        """Tell nothing more; the scheduler goes on."""
        self._worker.submit(self._leave)
        self._worker.finish(seconds)

    def _leave(self) -> None:
        self._closed = True
        self._let_go()

    def _do(self, job: Callable[[], None]) -> None:
        if self._closed or self._waits:
            return
        try:
            job()
        except SchedulerLost as error:
            self._lost(str(error))
        else:
            self._node.scheduler_fault = self._fault()

    def _tell_changed(self) -> None:
        self._asked = False
        self._do(self._tell)

    def _tell(self) -> None:
        if self._scheduler is None:
            self._tell_all()
        else:
            self._send(self._scheduler)

    def _tell_all(self) -> None:
        """Name every tenant to a scheduler, from HELLO to COMPLETE."""
        scheduler = self._connected()
        scheduler.tell(schedule_message.hello())
        self._told = {}
        self._send(scheduler)
        answer = scheduler.tell(schedule_message.complete())
        if answer.error:
            raise SchedulerLost(f"process {scheduler.pid} speaks another version")

    def _send(self, scheduler: Scheduler) -> None:
        """Tell what differs from what was told."""
        wanted = self._wanted()
        for key in [key for key in self._told if key not in wanted]:
            scheduler.tell(schedule_message.remove(key))
            self._told.pop(key)
            self._refused.pop(key, None)
        for key, (pages, found) in wanted.items():
            before = self._told.get(key)
            # The same key comes again with other pages: a container that is started once more.
            if before is None or before[0] is not pages or before[1] != found:
                self._send_tenant(scheduler, key, pages, found)

    def _send_tenant(self, scheduler: Scheduler, key: str, pages: Pages, found: Parts) -> None:
        message = schedule_message.tenant(key, found)

        def send(held: Pages) -> int:
            return scheduler.tell(message, [held.directory]).error

        error = pages.look(send, None)
        if error is None:
            return  # it has just ended
        self._told[key] = pages, found
        if not error:
            self._refused.pop(key, None)
            return
        why = os.strerror(error)
        if self._refused.get(key) != why:
            log("share-refused", "error", tenant=key, error=why)
        self._refused[key] = why

    def _wanted(self) -> dict[str, tuple[Pages, Parts]]:
        found, pages = parts(self._node), self._node.tenants.pages
        return {key: (pages[key], found[key]) for key in found if key in pages}

    def _fault(self) -> str:
        if not self._refused:
            return ""
        entries = self._node.ledger.entries
        key, why = next(iter(self._refused.items()))
        name = entries[key].title if key in entries else key
        return f"the scheduler does not hold the share of {name}: {why}"

    def _connected(self) -> Scheduler:
        """Return a scheduler as it should be: the one known, one that was left, or a new one."""
        command = self._command()
        scheduler = self._scheduler or self._left(command)
        if scheduler is not None and not self._is_right(scheduler, command):
            log("scheduler-replaced", pid=scheduler.pid, program=str(command.program))
            scheduler.end()
            self._let_go(scheduler)
            scheduler = None
        if scheduler is None:
            self._started = time.monotonic()
            scheduler = Scheduler.start(command)
            log("scheduler-started", pid=scheduler.pid, slow_motion=command.slow)
        if scheduler is not self._scheduler:
            self._scheduler = scheduler
            self._node.scheduler_pid = scheduler.pid
            self._watch(scheduler)
        return scheduler

    def _left(self, command: Command) -> Scheduler | None:
        """Return the scheduler that an earlier daemon left, None where there is none."""
        try:
            scheduler = Scheduler.connect(command.socket)
        except SchedulerLost:
            return None
        self._started = time.monotonic()
        log("scheduler-adopted", pid=scheduler.pid)
        return scheduler

    def _is_right(self, scheduler: Scheduler, command: Command) -> bool:
        if not scheduler.runs(command.program):
            return False
        try:
            answer = scheduler.tell(schedule_message.hello())
        except SchedulerLost:
            return False
        return answer.version == schedule_message.VERSION and answer.slow == command.slow

    def _command(self) -> Command:
        node = self._node
        slow = 1 if node.driver is None else max(1, round(node.driver.slow_motion))
        program = node.libraries.parent / "bin" / PROGRAM
        return Command(program, node.config.run_dir / SOCKET, slow)

    def _watch(self, scheduler: Scheduler) -> None:
        """Have its end noticed."""
        loop, pidfd = self._node.loop, scheduler.pidfd

        def ended() -> None:
            loop.forget(pidfd)
            self._worker.submit(lambda: self._ended(scheduler))

        loop.call(lambda: loop.read(pidfd, ended))

    def _ended(self, scheduler: Scheduler) -> None:
        if scheduler is self._scheduler and not self._closed:
            self._lost(f"process {scheduler.pid} has ended")

    def _lost(self, why: str) -> None:
        """Start another one: at once, unless that has just been tried."""
        log("scheduler-lost", "error", why=why)
        self._node.scheduler_pid = 0
        self._node.scheduler_fault = f"no scheduler holds shares of compute: {why}"
        if self._scheduler is not None:
            self._scheduler.end()  # it may hang
            self._let_go()
        if time.monotonic() - self._started > _STEADY_SECONDS:
            self._wait_seconds = 0.0
        wait = self._wait_seconds
        self._wait_seconds = min(max(_FIRST_WAIT_SECONDS, 2 * wait), _LONGEST_WAIT_SECONDS)
        self._waits = True
        self._node.loop.call(lambda: self._node.loop.later(wait, self._again))

    def _again(self) -> None:
        def again() -> None:
            self._waits = False
            self._do(self._tell_all)

        self._worker.submit(again)

    def _let_go(self, scheduler: Scheduler | None = None) -> None:
        """Close the connection; on the loop's thread, which may be watching the process."""
        held = scheduler or self._scheduler
        if held is self._scheduler:
            self._scheduler = None
        if held is None:
            return

        def close() -> None:
            self._node.loop.forget(held.pidfd)
            held.close()

        self._node.loop.call(close)
