# SPDX-License-Identifier: Apache-2.0
"""The cards of this node as gpushared reports them, also while it restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.kubernetes.log import StatusLog
    from gpushare.protocol import CardStatus

POLL_SECONDS: Final = 3.0
#: A restart of gpushared is over by then. After it, no card is schedulable: a pod would fail.
OUTAGE_SECONDS: Final = 10.0
OUTAGE: Final = "gpushared is not running"


@dataclass(frozen=True)
class SchedulableCard:
    """A card: its memory for containers, and how much of that the scheduler may hand out."""

    uuid: str
    memory_bytes: int
    schedulable_bytes: int  # 0 if no new container may use the card
    reason: str  # why it is 0
    numa_node: int | None
    allows_shares: bool = True  # false: whole cards only


class CardSource(Protocol):
    """The part of gpushare.client.Client that reports cards."""

    def cards(self) -> list[CardStatus]:
        """Return the cards by index."""


class CardFollower:
    """Asks gpushared for its cards every POLL_SECONDS."""

    def __init__(
        self, client: CardSource, log: StatusLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._log, self._clock = client, log, clock
        self._cards: tuple[SchedulableCard, ...] | None = None
        self._asked = self._answered = -POLL_SECONDS

    def poll(self) -> tuple[SchedulableCard, ...] | None:
        """Return the cards; None until gpushared has answered for the first time."""
        now = self._clock()
        if now - self._asked < POLL_SECONDS:
            return self._cards
        self._asked = now
        try:
            self._cards = _schedulable(self._client.cards())
        except UserError as error:
            self._log.note("gpushared", str(error))
            if self._cards is not None and now - self._answered >= OUTAGE_SECONDS:
                self._cards = tuple(
                    replace(card, schedulable_bytes=0, reason=OUTAGE) for card in self._cards
                )
        else:
            self._answered = now
            self._log.note("gpushared", f"gpushared reports {len(self._cards)} cards")
        return self._cards


def _schedulable(rows: Sequence[CardStatus]) -> tuple[SchedulableCard, ...]:
    return tuple(
        SchedulableCard(
            uuid=row["uuid"],
            memory_bytes=row["memory_bytes"] - row["system_reserved_bytes"],
            schedulable_bytes=row["schedulable_bytes"] if row["is_schedulable"] else 0,
            reason=row["schedulable_reason"],
            numa_node=row["numa_node"],
            allows_shares=row["allowed_mode"] != "exclusive",
        )
        for row in rows
    )
