# SPDX-License-Identifier: Apache-2.0
"""Shares whose programs are clients of an MPS server, as the driver lists them.

A server is reached through a folder: the host's, mounted into the container by a user, or that of a
server in the container. Its clients share a fault domain, and what the container's isolation says
does not hold for faults. A container with a whole card may run a server as it likes. A container on
a card in MPS mode is meant to be a client of the card's server, and mps/clients.py watches it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.core.log import log
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import TenantOnCard, UsageView
from gpushare.daemon.store.record import TenantRecord


def mps_clients(record: TenantRecord, uuid: str, usage: UsageView) -> list[int]:
    """Return the processes of a share that are clients of an MPS server on a card."""
    uses = usage.processes.get(record.key, ()) if record.shared else ()
    return [use.pid for card, use in uses if card == uuid and use.is_mps]


class MpsClients:
    """Logs each share that has become a client of an MPS server; the truth thread's."""

    def __init__(self) -> None:
        self._known: frozenset[TenantOnCard] = frozenset()

    def note(
        self, usage: UsageView, records: Mapping[str, TenantRecord], cards: Mapping[str, Card]
    ) -> None:
        """Log those that the last look did not find."""
        found = {
            (key, uuid): pids[0]
            for key in usage.processes.keys() & records.keys()
            if records[key].isolation != MPS
            for uuid in cards
            if (pids := mps_clients(records[key], uuid, usage))
        }
        for key, uuid in sorted(found.keys() - self._known):
            log(
                "tenant-uses-mps",
                "warning",
                tenant=key,
                name=records[key].title,
                card=uuid,
                pid=found[key, uuid],
                pod=records[key].of_pod,
            )
        self._known = frozenset(found)
