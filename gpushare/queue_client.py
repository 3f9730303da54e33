# SPDX-License-Identifier: Apache-2.0
"""The client of the queue: what `gpushare run --wait` and `gpushare queue` ask of gpushared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gpushare.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpushare.protocol import HostProcessGrant
    from gpushare.protocol.queue import QueueEntry, Ticket, TicketStatus


class QueueClient(Client):
    """A client whose starts can wait."""

    def queue(self) -> list[QueueEntry]:
        """Return the starts that wait, and those that were granted and have not started yet."""
        return [cast("QueueEntry", row) for row in self._rows("queue")]

    def take_ticket(
        self,
        source: Mapping[str, Any],
        *,
        name: str,
        kind: str,
        wait_seconds: int,
        rootless: bool,
    ) -> Ticket:
        """Return a ticket for this process; `source` has quota, variables, annotations and cards.

        `wait_seconds` 0: without a limit.
        """
        reply = self._ask(
            "queue-take",
            **source,
            name=name,
            kind=kind,
            wait_seconds=wait_seconds,
            rootless=rootless,
        )
        return {"ticket": reply["ticket"], "secret": reply["secret"]}

    def ticket_status(self, ticket: Ticket) -> TicketStatus:
        """Return what has become of a ticket."""
        return cast("TicketStatus", self._ask("queue-poll", **ticket))

    def cancel_ticket(self, ticket: str) -> str:
        """End a ticket: one's own, or any for root; return the name of its start."""
        return str(self._ask("queue-cancel", ticket=ticket)["name"])

    def open_granted(
        self, quota: Mapping[str, str], *, name: str, pid: int, rootless: bool, secret: str
    ) -> HostProcessGrant:
        """Take over what was granted to a ticket of this process, as `open` reserves."""
        reply = self._ask(
            "open", quota=dict(quota), name=name, pid=pid, rootless=rootless, ticket=secret
        )
        return cast("HostProcessGrant", reply)
