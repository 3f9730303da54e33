# SPDX-License-Identifier: Apache-2.0
"""GPUSHARE_WAIT: a create that waits for room, for at most as long as its container requests.

Docker holds the container's lock meanwhile, so the time is short (quota/values.py, ShortWait). The
create's own thread waits, never the decide thread. Few may wait at a time: each keeps a thread of
those that all creates share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gpushare.daemon.lifecycle.queue import Applicant, Queue, QueueFull, TicketNotFound
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ticket import TicketSource
from gpushare.quota.request import PROFILE, WAIT, EngineCards, QuotaRequest, requests_memory

_MOST_WAITING: Final = 16
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class WaitingCreate:
    """A create that waits: its container's name, and the process that makes it (0: not known).

    `check` raises once no client waits for the container. `waits` has the client wait for so many
    seconds more, and with 0 as long as for any answer.
    """

    name: str
    maker: int
    quota: QuotaRequest
    cards: EngineCards | None
    check: Callable[[], None]
    waits: Callable[[float], None]


@contextmanager
def granted(one: WaitingCreate, state: DaemonState, queue: Queue) -> Iterator[str]:
    """Yield the secret of a ticket that was granted, "" if there was no room in time.

    A ticket that was not taken over in the block ends with it.
    """
    seconds = one.quota.wait_seconds or 0
    tickets = state.ledger.tickets.values()
    if sum(ticket.kind == "create" for ticket in tickets) >= _MOST_WAITING:
        yield ""
        return
    applicant = Applicant(one.name, 0, one.maker or os.getpid(), False, "create", seconds)
    source = TicketSource(_options(one.quota), {}, {}, _cards(one.cards, state))
    try:
        ticket, secret = state.decide.run(lambda: queue.take(applicant, source))
    except (NoRoom, QueueFull, TicketNotFound):
        yield ""
        return
    try:
        one.waits(seconds)
        until = time.monotonic() + seconds
        while (found := state.ledger.tickets.get(ticket.id)) is not None and not found.is_granted:
            one.check()
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_SECONDS)
        one.waits(0)
        yield secret if found is not None and found.is_granted else ""
    finally:
        if ticket.id in state.ledger.tickets:
            state.decide.run(lambda: queue.drop(ticket.id))


def _options(quota: QuotaRequest) -> dict[str, str]:
    """Return what is requested, by canonical key; a profile is in it as what it stands for."""
    values = {key: one.text for key, one in quota.requested.items() if key != WAIT}
    rest = {key: one for key, one in quota.requested.items() if key != PROFILE}
    if requests_memory(rest):
        values.pop(PROFILE, None)
    return values


def _cards(cards: EngineCards | None, state: DaemonState) -> str:
    """Return the cards that the engine put into the spec, as `--gpus` names them."""
    if cards is None:
        return ""
    if cards.all_cards:
        return "all"
    by_minor = {card.minor: card.uuid for card in state.loaded().cards if card.instance is None}
    named = cards.devices or tuple(by_minor[minor] for minor in cards.minors if minor in by_minor)
    return f"device={','.join(named)}" if named else str(cards.count or 1)
