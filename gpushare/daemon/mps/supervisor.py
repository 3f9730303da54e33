# SPDX-License-Identifier: Apache-2.0
"""The cards in MPS mode, each with a control daemon and a thread that supervises it.

No thread that decides waits for a control daemon: what one has to do is submitted to its thread,
and what it has found is published in `Node.mps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
_LOOK_SECONDS: Final = 0.8  # and the rest of a second to repair what it has found
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
    beside = str(Path(driver.files.cuda.host_path).parent)
    paths = (Path(program.host_path) for program in files.programs(tree or RootedTree(), beside))
    return next((path for path in paths if path.name == PROGRAM), None)


@dataclass
class _Supervised:
    """A card's server with its thread."""

    server: CardServer
    worker: Worker
    is_queued: bool = False  # a look waits for the thread


class MpsSupervisor:
    """Keeps the control daemons of `state`'s cards; the decide thread's, mostly."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._cards: dict[str, _Supervised] = {}
        # By card: the thread that ends its control daemon, which the next one has to wait for.
        self._ending: dict[str, Worker] = {}
        self._is_due = False
        state.loop.every(lambda: _LOOK_SECONDS, self._look)

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
        cards = () if state.node.config.driver_released else driver.cards
        wanted = {card.uuid: card for card in cards if state.node.backend_of(card) == MPS}
        program = find_program(driver) if wanted else None
        for uuid in self._cards.keys() - wanted.keys():
            self._end(uuid)
        for uuid, card in wanted.items():
            if uuid in self._cards:
                self._cards[uuid].worker.submit(self._cards[uuid].server.refresh)
            elif program is None:
                why = f"this machine has no {PROGRAM}, which is part of NVIDIA's driver"
                self._publish(uuid, MpsCardState(fault=why))
            else:
                self._begin(card, program)

    def release(self, key: str) -> None:
        """End what a tenant that was released had of its server; returns at once."""
        for supervised in list(self._cards.values()):
            supervised.worker.submit(partial(supervised.server.release, key))

    def close(self) -> None:
        """Look no more; the control daemons keep running, as the containers do."""
        for supervised in self._cards.values():
            supervised.worker.submit(supervised.server.runner.close)
            supervised.worker.finish(_FINISH_SECONDS)

    def _begin(self, card: Card, program: Path) -> None:
        server = CardServer(card, program, self._state, partial(self._publish, card.uuid))
        self._publish(card.uuid, server.state)
        worker = self._ending.pop(card.uuid, None) or Worker(f"mps-{card.index}")
        supervised = self._cards[card.uuid] = _Supervised(server, worker)
        self._submit_look(supervised)

    def _end(self, uuid: str) -> None:
        """Stop a card's control daemon: nothing of it is left, or nothing new is placed there."""
        supervised = self._cards.pop(uuid)

        def forget() -> None:
            if uuid not in self._cards:
                self._publish(uuid, None)

        def stop() -> None:
            supervised.server.runner.stop()
            self._state.decide.submit(forget)

        supervised.worker.submit(stop)
        self._ending[uuid] = supervised.worker

    def _publish(self, uuid: str, state: MpsCardState | None) -> None:
        mps = self._state.node.mps
        cards = {**mps.cards, uuid: state}
        mps.cards = MappingProxyType(
            {uuid: card for uuid, card in cards.items() if card is not None}
        )

    def _look(self) -> None:
        """Have each card looked at; the loop's."""
        for supervised in list(self._cards.values()):
            self._submit_look(supervised)

    def _submit_look(self, supervised: _Supervised) -> None:
        if supervised.is_queued:
            return
        supervised.is_queued = True

        def look() -> None:
            supervised.is_queued = False
            supervised.server.look()

        supervised.worker.submit(look)

    def _server_of(self, key: str) -> _Supervised | None:
        record = self._state.ledger.entries.get(key)
        uuids = [allocation.uuid for allocation in record.allocations] if record else []
        return next((self._cards[uuid] for uuid in uuids if uuid in self._cards), None)

    def admit(self, key: str, uid: int) -> MpsGrant:
        """Make a tenant a client of its card's server, and return what it needs; MpsRefused.

        It waits for the control daemon, so it is not for the decide thread.
        """
        supervised = self._server_of(key)
        if supervised is None:
            raise MpsRefused("its card is not in MPS mode any more; create the container again")
        return supervised.worker.run(lambda: supervised.server.admit(key, uid))

    def terminate(self, key: str, then: Callable[[], None]) -> None:
        """End a tenant's work on its card, then call `then`; any thread, returns at once.

        A client that is killed amid its work may leave the server undefined (manual, "When to Use
        MPS").
        """
        supervised = self._server_of(key)
        if supervised is None:
            then()
            return

        def terminate() -> None:
            try:
                supervised.server.terminate(key)
            finally:
                then()

        supervised.worker.submit(terminate)
