# SPDX-License-Identifier: Apache-2.0
"""The clients of a card's MPS server: whose they are, and which of them has caused a fault.

A fatal fault of one client ends the work of all clients of the server ("Architecture"). The control
daemon says that it happened, the server's log which process caused it. gpushared names the
containers: in protocol 3 a namespace is one container's, in protocol 2 the driver's list of
processes says whose a PID is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.daemon.cards.mps_state import MPS, MpsLoss
from gpushare.daemon.core.log import log
from gpushare.daemon.mps.control import MpsControl
from gpushare.daemon.mps.faults import ServerLogs
from gpushare.daemon.mps.model import MpsProcess
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState

_FAULT: Final = "FAULT"
_BYPASS_LOOKS: Final = 3  # in a row: a process connects before or after it is listed


@dataclass(frozen=True)
class ClientsSeen:
    """What one look has found; `losses` and `bypasses` are by tenant."""

    server_state: str
    server_pids: tuple[int, ...]
    client_pids: frozenset[int]
    losses: Mapping[str, MpsLoss]
    bypasses: Mapping[str, int]


class ClientWatch:
    """Watches the clients of one card's server; the card's thread's."""

    def __init__(self, card: Card, state: DaemonState, logs: Path) -> None:
        self._card = card
        self._state = state
        self._logs = ServerLogs(logs)
        self._owners: dict[int, str] = {}  # tenants of the clients at the last look, by PID
        self._is_faulted = False
        self._suspects: dict[tuple[str, int], int] = {}  # looks in a row, by tenant and PID
        self._bypasses: frozenset[str] = frozenset()

    def tenants(self) -> set[str]:
        """Return the tenants that had clients at the last look."""
        return set(self._owners.values())

    def forget(self, key: str) -> None:
        """Forget a tenant that has ended."""
        self._owners = {pid: owner for pid, owner in self._owners.items() if owner != key}

    def of_tenant(self, clients: Sequence[MpsProcess], key: str) -> list[MpsProcess]:
        """Return those of `clients` that are a tenant's."""
        listed = self._listed()
        return [client for client in clients if self._owner(client, listed) == key]

    def look(self, control: MpsControl, losses: Mapping[str, MpsLoss]) -> ClientsSeen:
        """Look at servers and clients; MpsError. `losses` are those that are known."""
        servers, clients, listed = control.servers(), control.clients(), self._listed()
        states = [server.state.upper() for server in servers]
        is_faulted = _FAULT in states
        owners = {client.pid: owner for client in clients if (owner := self._owner(client, listed))}
        culprits = self._logs.culprits()
        if culprits or (is_faulted and not self._is_faulted):
            losses = {**losses, **self._fault(culprits, {**self._owners, **owners})}
        # A tenant whose processes have started again is a client again.
        if not is_faulted:
            fresh = owners.keys() - self._owners.keys()
            again = {owners[pid] for pid in fresh}
            losses = {key: loss for key, loss in losses.items() if key not in again}
        self._owners, self._is_faulted = owners, is_faulted
        pids = frozenset(client.pid for client in clients)
        return ClientsSeen(
            _FAULT if is_faulted else next(iter(states), ""),
            tuple(server.pid for server in servers if server.pid),
            pids,
            losses,
            self._bypassing(pids),
        )

    def _fault(self, culprits: Mapping[int, bool], owners: Mapping[int, str]) -> dict[str, MpsLoss]:
        """Log who caused a fault and whose processes it has ended; return the losses.

        `culprits` are as in ServerLogs.
        """
        now, records = time.time(), self._state.ledger.entries
        known = (one for one in culprits if one in owners)
        pid = next(known, next(iter(culprits), 0))
        culprit = owners.get(pid, "")
        others = set() if culprits.get(pid) else {*owners.values()} - {culprit}
        victims = sorted(key for key in others if key in records)
        who = records[culprit].title if culprit in records else "a client"
        cause = f"{who} (process {pid})" if pid else who
        names = [records[key].title for key in victims]
        log(
            "mps-server-faulted",
            "error",
            card=self._card.uuid,
            tenant=culprit,
            name=who if culprit else "",
            pid=pid,
            ended=names,
        )
        for key in victims:
            log(
                "tenant-lost-mps-server",
                "error",
                tenant=key,
                name=records[key].title,
                card=self._card.uuid,
                cause=cause,
                pod=records[key].of_pod,
            )
        reason = f"a fatal fault of {cause} ended the work of all clients of the MPS server"
        found = {key: MpsLoss(reason, now) for key in victims}
        if culprit in records:
            found[culprit] = MpsLoss(f"process {pid} of it had a fatal fault", now)
        return found

    def _owner(self, client: MpsProcess, listed: Mapping[int, str]) -> str:
        return client.tenant or listed.get(client.pid) or self._owners.get(client.pid, "")

    def _listed(self) -> dict[int, str]:
        """Return the tenants of the processes that the driver lists, by PID."""
        return {
            use.pid: key
            for key, uses in self._state.observed.usage.processes.items()
            for uuid, use in uses
            if uuid == self._card.uuid
        }

    def _bypassing(self, clients: frozenset[int]) -> dict[str, int]:
        """Return the tenants with a process that uses the card and is no client, and that process.

        Neither the control daemon nor the driver lists it as one, several looks in a row.
        """
        records = self._state.ledger.entries
        suspects = {
            (key, use.pid): self._suspects.get((key, use.pid), 0) + 1
            for key, uses in self._state.observed.usage.processes.items()
            if key in records and records[key].isolation == MPS
            for uuid, use in uses
            if uuid == self._card.uuid and not use.is_mps and use.pid not in clients
        }
        self._suspects = suspects
        found = {key: pid for (key, pid), looks in suspects.items() if looks >= _BYPASS_LOOKS}
        for key in sorted(found.keys() - self._bypasses):
            log(
                "tenant-bypasses-mps",
                "warning",
                tenant=key,
                name=records[key].title,
                card=self._card.uuid,
                pid=found[key],
                pod=records[key].of_pod,
            )
            self._state.node.mps.bypassed(key, found[key])
        self._bypasses = frozenset(found)
        return found
