# SPDX-License-Identifier: Apache-2.0
"""The cards in MPS mode, each with a control daemon and a thread that supervises it.

No thread that decides waits for a control daemon: what one has to do is submitted to its thread,
and what it has found is published in `DaemonState.mps`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpushare.daemon.cards.mps_state import MPS, MpsCardState, MpsGrant, MpsRefused
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.mps.card import CardServer
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState
from gpushare.host.driver import files
from gpushare.host.rooted_tree import RootedTree

PROGRAM: Final = "nvidia-cuda-mps-control"
_LOOK_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 10.0  # where no card is in MPS mode
_FINISH_SECONDS: Final = 2.0


def find_program(driver: LoadedDriver, tree: RootedTree | None = None) -> Path | None:
    """Return the program of the control daemon, None if this machine has none.

    Its CDI spec has the files of a driver; that of a simulated driver is beside its device.
    """
    for mount in driver.files.cdi.everything.mounts:
        if Path(mount.host_path).name == PROGRAM:
            return Path(mount.host_path)
    for device in driver.env.values():
        return Path(device).with_name(PROGRAM)
    found = (one.host_path for one in files.programs(tree or RootedTree()))
    return next((Path(path) for path in found if Path(path).name == PROGRAM), None)


class _Supervised:
    """A card's server with its thread."""

    def __init__(self, card: Card, server: CardServer, worker: Worker | None) -> None:
        self.card = card
        self.server = server
        self.worker = worker or Worker(f"mps-{card.index}")
        self.is_queued = False  # a look that waits for the thread
        self.watched = -1  # the pidfd that the loop watches


class MpsSupervisor:
    """Keeps the control daemons of `state`'s cards. Its methods are the decide thread's."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._cards: dict[str, _Supervised] = {}
        # By card: the thread that ends its control daemon, which the next one has to wait for.
        self._ending: dict[str, Worker] = {}
        mps = state.node.mps
        mps.admit = self._admit
        mps.terminate = self._terminate
        self._is_due = False
        state.loop.every(lambda: _LOOK_SECONDS if self._cards else _IDLE_SECONDS, self._look)

    def changed(self) -> None:
        """Look soon, after a new quota, driver or configuration; returns at once."""
        if not self._is_due:
            self._is_due = True
            self._state.decide.submit(self.check)

    def check(self) -> None:
        """Have a control daemon for each card in MPS mode, and none for the others."""
        self._is_due = False
        state, driver = self._state, self._state.node.driver
        if driver is None:
            return
        wanted = {card.uuid: card for card in driver.cards if state.node.backend_of(card) == MPS}
        program = find_program(driver) if wanted else None
        partitions = {uuid: self._has_partitions(card) for uuid, card in wanted.items()}
        for uuid, one in list(self._cards.items()):
            if one.server.partitions != partitions.get(uuid):
                self._end(uuid)
        for uuid, card in wanted.items():
            if uuid in self._cards:
                self._cards[uuid].worker.submit(self._cards[uuid].server.refresh)
            elif program is None:
                why = f"this machine has no {PROGRAM}, which is part of NVIDIA's driver"
                self._publish(uuid, MpsCardState(fault=why))
            else:
                self._begin(card, program, partitions=partitions[uuid])

    def release(self, key: str) -> None:
        """End what a tenant that was released had of its server; returns at once."""
        for one in list(self._cards.values()):
            one.worker.submit(lambda one=one: one.server.release(key))  # type: ignore[misc]

    def close(self) -> None:
        """Look no more; the control daemons keep running, as the containers do."""
        for one in self._cards.values():
            one.worker.submit(one.server.runner.close)
            one.worker.finish(_FINISH_SECONDS)

    def _has_partitions(self, card: Card) -> bool:
        return self._state.node.config.rule_of(card.index, card.uuid, card.model).mps_partitions

    def _begin(self, card: Card, program: Path, *, partitions: bool) -> None:
        def publish(found: MpsCardState) -> None:
            self._publish(card.uuid, found)

        server = CardServer(card, program, self._state, publish, partitions=partitions)
        self._publish(card.uuid, server.state)
        one = self._cards[card.uuid] = _Supervised(card, server, self._ending.pop(card.uuid, None))
        self._submit_look(one)

    def _end(self, uuid: str) -> None:
        """Stop a card's control daemon: nothing of it is left, or nothing new is placed there."""
        one = self._cards.pop(uuid)

        def stop() -> None:
            self._unwatch(one)
            one.server.runner.stop()
            self._state.decide.submit(lambda: self._forget(uuid))

        one.worker.submit(stop)
        self._ending[uuid] = one.worker

    def _forget(self, uuid: str) -> None:
        if uuid not in self._cards:
            mps = self._state.node.mps
            mps.cards = MappingProxyType(
                {other: card for other, card in mps.cards.items() if other != uuid}
            )

    def _publish(self, uuid: str, found: MpsCardState) -> None:
        mps = self._state.node.mps
        mps.cards = MappingProxyType({**mps.cards, uuid: found})

    def _look(self) -> None:
        """Have each card looked at; the loop's."""
        for one in list(self._cards.values()):
            self._submit_look(one)

    def _submit_look(self, one: _Supervised) -> None:
        if one.is_queued:
            return
        one.is_queued = True

        def look() -> None:
            one.is_queued = False
            one.server.look()
            self._watch(one)

        one.worker.submit(look)

    def _watch(self, one: _Supervised) -> None:
        """Look again as soon as the control daemon has ended; the card's thread's."""
        pidfd, loop = one.server.runner.pidfd, self._state.loop
        if pidfd == one.watched or pidfd < 0:
            return
        one.watched = pidfd

        def ended() -> None:
            loop.forget(pidfd)
            one.watched = -1
            self._submit_look(one)

        loop.call(lambda: loop.read(pidfd, ended))

    def _unwatch(self, one: _Supervised) -> None:
        pidfd, loop = one.watched, self._state.loop
        one.watched = -1
        loop.call(lambda: loop.forget(pidfd))

    # What DaemonState.mps is asked for, on any thread.

    def _server_of(self, key: str) -> _Supervised | None:
        record = self._state.ledger.entries.get(key)
        uuids = [] if record is None else [one.uuid for one in record.allocations]
        return next((self._cards[uuid] for uuid in uuids if uuid in self._cards), None)

    def _admit(self, key: str, uid: int) -> MpsGrant:
        one = self._server_of(key)
        if one is None:
            raise MpsRefused("its card is not in MPS mode any more; create the container again")
        return one.worker.run(lambda: one.server.admit(key, uid))

    def _terminate(self, key: str, then: Callable[[], None]) -> None:
        one = self._server_of(key)
        if one is None:
            then()
            return

        def terminate() -> None:
            try:
                one.server.terminate(key)
            finally:
                then()

        one.worker.submit(terminate)
