# SPDX-License-Identifier: Apache-2.0
"""One card in MPS mode: its control daemon, and the containers that are clients of its server.

All of it runs on a thread of its own, because each command waits for the control daemon; others
read what is published.

If the control daemon ends, its servers and their clients end too: it is started again with the
limits of the containers, whose processes have to start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.daemon.cards.mps_state import MpsCardState, MpsGrant, MpsLoss, MpsRefused
from gpushare.daemon.core.log import log
from gpushare.daemon.mps.clients import ClientWatch
from gpushare.daemon.mps.control import MpsControl
from gpushare.daemon.mps.grants import MpsSettings, grant_of, limits_of, settings_of
from gpushare.daemon.mps.model import ClientRoute, MpsError, TenantLimits
from gpushare.daemon.mps.runner import ControlRunner
from gpushare.daemon.mps.variables import write_variables
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord


class CardServer:
    """The server of `card`; every method is the card's thread's."""

    def __init__(
        self,
        card: Card,
        program: Path,
        state: DaemonState,
        publish: Callable[[MpsCardState], None],
        *,
        partitions: bool,
    ) -> None:
        self.state = MpsCardState()
        self.partitions = partitions
        self.runner = ControlRunner(card, program, state, partitions=partitions)
        self._card = card
        self._daemon = state
        self._publish = publish
        self._clients = ClientWatch(card, state, self.runner.folders.log)
        self._settings: dict[str, MpsSettings] = {}  # by tenant: what its grant was made from
        self._leaving: set[str] = set()  # tenants that have ended, and have something left there

    def look(self) -> None:
        """Start what has to run, and see what the server and its clients do."""
        change = self.runner.look()
        if change == "ended":
            self._note_end()
        control = self.runner.control
        if control is not None and change == "adopted":
            kept = [found for one in self.runner.kept() if (found := _kept(one)) is not None]
            self._restore(control, {one.key: (one, route) for one, route in kept})
        elif control is not None and change == "started":
            self._restore(control, {key: (one, None) for key, one in self._settings.items()})
        if control is not None and not change:
            self._remove_ended()
            self._look_at_clients(control)
            self.runner.folders.trim_logs()  # after the last lines were read
        program = None if control is None else control.program
        self._set(
            fault=self.runner.fault,
            pid=self.runner.pid,
            protocol=0 if program is None else program.protocol,
            is_multiuser=program is not None and program.multiuser,
        )

    def admit(self, key: str, uid: int) -> MpsGrant:
        """Make a tenant a client of the server, and return what it needs; MpsRefused."""
        self.look()
        control, record = self.runner.control, self._daemon.ledger.entries.get(key)
        if record is None:
            raise MpsRefused("the reservation has expired; create the container again")
        if control is None or self.runner.fault:
            raise MpsRefused(f"card {self._card.index} is in MPS mode, and {self.runner.fault}")
        self._refuse_other_user(key, uid)
        try:
            return self._add(control, self._settings_of(record, uid), None)
        except (MpsError, OSError, ValueError) as error:
            raise MpsRefused(
                f"{record.title} cannot be a client of the MPS server of card {self._card.index}: "
                f"{error}; see gpushare doctor"
            ) from error

    def refresh(self) -> None:
        """Set the limits again of containers whose quota has changed."""
        control = self.runner.control
        for key, before in list(self._settings.items()):
            record = self._daemon.ledger.entries.get(key)
            if control is None or record is None or not record.allocations:
                continue
            wanted = self._settings_of(record, before.uid)
            try:
                if wanted != before:
                    self._change(control, before, wanted)
            except (MpsError, OSError, ValueError) as error:
                log(
                    "mps-limits-not-changed",
                    "warning",
                    tenant=key,
                    name=record.title,
                    card=self._card.uuid,
                    error=str(error),
                )

    def release(self, key: str) -> None:
        """Forget a tenant that has ended, and what was created for it."""
        if self._settings.pop(key, None) is None:
            return
        self._clients.forget(key)
        self._leaving.add(key)
        self._remove_ended()
        grants = {other: grant for other, grant in self.state.grants.items() if other != key}
        losses = {other: loss for other, loss in self.state.losses.items() if other != key}
        self._set(grants=grants, losses=losses)
        self._keep()

    def _remove_ended(self) -> None:
        """Remove what was created for tenants that have ended; their last clients may be left."""
        for key in list(self._leaving):
            try:
                if self.runner.control is not None:
                    self.runner.control.remove(key)
            except MpsError:
                continue  # at the next look
            self._leaving.discard(key)

    def terminate(self, key: str) -> None:
        """End the work of a tenant's processes on the card, so that they can be killed."""

        def terminate(control: MpsControl) -> None:
            for client in self._clients.of_tenant(control.clients(), key):
                control.terminate(client)

        self._try(terminate)

    def _try(self, command: Callable[[MpsControl], None]) -> None:
        """Have the control daemon do something, if it runs; a failure is logged."""
        if self.runner.control is None:
            return
        try:
            command(self.runner.control)
        except MpsError as error:
            log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))

    def _note_end(self) -> None:
        """Note that the control daemon has ended, and with it all clients."""
        loss = MpsLoss("the MPS control daemon of its card has ended", time.time())
        losses = {**self.state.losses, **dict.fromkeys(self._clients.tenants(), loss)}
        self._set(losses=losses, server_state="", server_pids=(), client_pids=frozenset())

    def _restore(
        self, control: MpsControl, known: dict[str, tuple[MpsSettings, ClientRoute | None]]
    ) -> None:
        """Tell a control daemon of the card's containers, which it may have had before."""
        for key, (settings, before) in known.items():
            try:
                self._add(control, settings, before)
            except (MpsError, OSError, ValueError) as error:
                log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))
            if key not in self._daemon.ledger.entries:
                self.release(key)
        self._keep()

    def _settings_of(self, record: TenantRecord, uid: int) -> MpsSettings:
        return settings_of(record, uid, self._daemon.node.policy_of(self._card.uuid))

    def _refuse_other_user(self, key: str, uid: int) -> None:
        """Refuse a second user where a server serves one: MpsRefused, which names the user."""
        if self.state.is_multiuser:
            return
        records = self._daemon.ledger.entries
        for other, settings in self._settings.items():
            if other != key and settings.uid != uid and other in records:
                raise MpsRefused(
                    f"the MPS server of card {self._card.index} serves uid {settings.uid} "
                    f"({records[other].title}), and the container runs as uid {uid}: this driver "
                    "has no server for several users. Run both as one user, or use another card."
                )

    def _add(
        self, control: MpsControl, settings: MpsSettings, before: ClientRoute | None
    ) -> MpsGrant:
        """Set a container's limits; MpsError."""
        limits = limits_of(settings, self._chunks(control, settings))
        try:
            route = control.add(settings.key, limits, settings.uid, before)
        except MpsError as error:
            if not limits.chunks:
                raise
            raise MpsError(
                f"no partition of {limits.chunks} chunks of multiprocessors is available for "
                f"{settings.cores} % of the card ({error})"
            ) from error
        return self._granted(control, settings, limits, route)

    def _change(self, control: MpsControl, before: MpsSettings, wanted: MpsSettings) -> None:
        known = self.state.grants[before.key]
        keeps_cores = before.cores == wanted.cores
        chunks = (known.chunks or None) if keeps_cores else self._chunks(control, wanted)
        limits = limits_of(wanted, chunks)
        self._granted(control, wanted, limits, control.change(before.key, limits))

    def _granted(
        self, control: MpsControl, settings: MpsSettings, limits: TenantLimits, route: ClientRoute
    ) -> MpsGrant:
        grant = grant_of(control.program, limits, settings, route)
        self._settings[settings.key] = settings
        self._leaving.discard(settings.key)  # the same container, started once more
        self._set(grants={**self.state.grants, settings.key: grant})
        write_variables(grant, self._daemon.tenants.pages.get(settings.key))
        self._keep()
        return grant

    def _chunks(self, control: MpsControl, settings: MpsSettings) -> int | None:
        """Return how many chunks of the card the cores are, never less; None without partitions.

        On a card that has partitions, the driver gives a client without one no multiprocessors.
        """
        if not self.partitions:
            return None
        if not settings.cores:
            raise MpsError("each container of the card needs cores under fixed-share")
        found = control.partitions()
        chunks = -(-found.total_chunks * settings.cores // 100)
        return max(1, chunks)

    def _look_at_clients(self, control: MpsControl) -> None:
        if not self.state.grants:
            return
        try:
            seen = self._clients.look(control, self.state.losses)
        except MpsError as error:
            log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))
            return
        self._set(**vars(seen))

    def _keep(self) -> None:
        """Write what a later gpushared has to know of the containers."""
        self.runner.keep(
            [
                {**vars(self._settings[key]), "env": dict(one.variables), "folder": one.folder}
                for key, one in self.state.grants.items()
                if key in self._settings
            ]
        )

    def _set(self, **changes: Any) -> None:
        """Publish what has changed."""
        changed = replace(self.state, **changes)
        if changed != self.state:
            self.state = changed
            self._publish(changed)


def _kept(values: dict[str, Any]) -> tuple[MpsSettings, ClientRoute] | None:
    """Return a tenant's settings and route as `_keep` has written them; None for anything else."""
    try:
        known = dict(values)
        route = ClientRoute(Path(known.pop("folder")), dict(known.pop("env")))
        return MpsSettings(**known), route
    except (TypeError, ValueError, LookupError):
        return None
