# SPDX-License-Identifier: Apache-2.0
"""The ledger's record of a ticket: a start that waits for room, or was granted it.

A waiting ticket reserves nothing. When it is granted, its record gets the `allocations`, which are
reserved from then on, in one write. The record of the start that takes it over names the ticket,
which ends with that write: at no instruction the room belongs to nobody, or to both.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, Final, Literal

from gpushare.daemon.placement.model import AllocationUse
from gpushare.daemon.placement.request import NoRoom, PlacedCard
from gpushare.daemon.store.record import CardAllocation, from_json, tuple_of

#: The start of a ticket: a command of `gpushare run`, or a container of the engine's command that
#: it runs.
TicketKind = Literal["command", "container"]

#: A ticket's ID; it is a part of file names.
ID: Final = re.compile(r"[0-9a-f]{8}", re.ASCII)
PREFIX: Final = "ticket-"  # of the file in the ledger


@dataclass(frozen=True)
class TicketSource:
    """The request of a ticket, as texts: by canonical key, and as an engine's command has it."""

    options: Mapping[str, str]
    variables: Mapping[str, str]
    annotations: Mapping[str, str]
    cards: str = ""  # the value of `--gpus`; "": none


@dataclass(frozen=True)
class TicketRecord:
    """A ticket. It ends with process `pid`, whose start time is `starttime`."""

    section: ClassVar = "ticket"  # of its file
    namespace: ClassVar[str] = ""  # none of Kubernetes

    id: str
    number: int  # counts the arrivals of this boot
    secret: str  # the SHA-256 of the text that its holder shows
    name: str
    uid: int
    pid: int
    starttime: int
    priority: int
    source: TicketSource
    is_rootless: bool = False  # the policy of users holds for it
    kind: TicketKind = "command"
    arrived: float = 0.0  # seconds since the epoch
    deadline: float = 0.0  # seconds of CLOCK_BOOTTIME; 0: none
    granted: float = 0.0  # as `arrived`; 0: not yet
    expires: float = 0.0  # as `deadline`
    allocations: tuple[CardAllocation, ...] = ()

    @property
    def file(self) -> str:
        """The name of its file in the ledger."""
        return PREFIX + self.id

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"ticket {self.id}"

    @property
    def is_granted(self) -> bool:
        """Whether room is reserved for it."""
        return bool(self.allocations)

    def reserved_cores(self, allocation: CardAllocation, card_policy: str) -> int:
        """Return the percent of a card that is reserved for it, whatever the card's policy."""
        del card_policy
        return allocation.cores

    def refuse_above(self, placed: Sequence[PlacedCard]) -> None:
        """Raise NoRoom if a start that shows the ticket would get more than it was granted."""
        has = [(allocation.quota_bytes, allocation.cores) for allocation in self.allocations]
        wants = [(card.memory_bytes, card.cores) for card in placed]
        for had, wanted in zip_longest(sorted(has), sorted(wants), fillvalue=(0, 0)):
            if wanted[0] > had[0] or wanted[1] > had[1]:
                raise NoRoom(
                    f"{self.title} was granted less than the start that shows it requests. Request "
                    "the same in the command that gpushare run --wait starts"
                )


def digest(secret: str) -> str:
    """Return what is recorded of a ticket's secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def ticket_from_json(values: Mapping[str, Any]) -> TicketRecord:
    """Return the record of a ticket; ValueError, TypeError, LookupError."""
    ticket = from_json(
        TicketRecord,
        values,
        source=lambda source: TicketSource(**source),
        allocations=tuple_of(CardAllocation),
    )
    if not ID.fullmatch(ticket.id):
        raise ValueError("it has no ID of a ticket")
    return ticket


def granted_parts(card: str, tickets: Iterable[TicketRecord]) -> tuple[AllocationUse, ...]:
    """Return what is reserved of a card for tickets that were granted."""
    return tuple(
        AllocationUse(
            ticket.title,
            allocation.quota_bytes,
            allocation.cores,
            allocation.whole,
            key=ticket.file,
        )
        for ticket in tickets
        for allocation in ticket.allocations
        if allocation.uuid == card
    )
