# SPDX-License-Identifier: Apache-2.0
"""Which cards a request gets: pure, from what is asked and what each card has left.

What each card could give is looked at by itself (fit.py), what the asker may have of all of them by
the set (bounds.py); of the sets that may be taken the strategy's first is (order.py). A refusal
says of every card why it was not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpushare.daemon.cards.capacity import Room
from gpushare.daemon.cards.topology import NO_LINKS, Links
from gpushare.daemon.placement import order
from gpushare.daemon.placement.ask import Ask, NoRoom, NoSuchCard, Placed
from gpushare.daemon.placement.fit import why_not
from gpushare.daemon.placement.growth import grows, sets_aside
from gpushare.daemon.placement.named import candidates, find_card
from gpushare.daemon.placement.obstacle import Obstacle
from gpushare.daemon.placement.refusal import refusal, refusal_of_all
from gpushare.quota import Total

__all__ = [
    "Ask",
    "NoRoom",
    "NoSuchCard",
    "Placed",
    "find_card",
    "grows",
    "place",
    "sets_aside",
]


def place(ask: Ask, rooms: Sequence[Room], links: Links = NO_LINKS) -> tuple[Placed, ...]:
    """Return a place on each card that `ask` gets, by index; NoRoom or NoSuchCard otherwise."""
    if not rooms:
        raise NoRoom("this machine has no card; see gpushare doctor")
    named = candidates(ask, rooms)
    wanted = _count(ask, named)
    obstacles = {room.card.uuid: why for room in named if (why := why_not(ask, room))}
    fitting = [room for room in named if room.card.uuid not in obstacles]
    if len(fitting) < wanted:
        less_helps = _less_helps(ask, named)
        raise NoRoom(refusal(ask, wanted, named, obstacles, less_helps=less_helps))
    taken = order.first(ask, fitting, wanted, links, _bound(ask))
    if taken is None:
        best = order.first(ask, fitting, wanted, links)
        over = _over(ask, best or ())
        assert over is not None
        raise NoRoom(refusal_of_all(ask, over, less_helps=_less_helps(ask, named)))
    return tuple(
        Placed(room.card, ask.bytes_of(room.card), ask.cores_of(room), ask.whole)
        for room in sorted(taken, key=lambda room: room.card.index)
    )


def _bound(ask: Ask) -> Callable[[Sequence[Room]], bool] | None:
    """Return whether a set of cards may be had together; None where all of them may."""
    if ask.bounds.total == Total():
        return None
    return lambda taken: _over(ask, taken) is None


def _over(ask: Ask, taken: Sequence[Room]) -> Obstacle | None:
    """Return why a set of cards may not be had together; None where it may."""
    return ask.bounds.why_not_all([(room.card, ask.wanted_of(room)) for room in taken])


def _less_helps(ask: Ask, named: Sequence[Room]) -> bool:
    """Whether one card would be given to who asks for as little as can be."""
    if ask.whole:
        return False
    for size in {room.context_bytes + 1 for room in named}:
        little = replace(
            ask, memory_bytes=size, memory_percent=None, memory_limit_bytes=None, cores=0
        )
        if any(why_not(little, room) is None and _over(little, [room]) is None for room in named):
            return True
    return False


def _count(ask: Ask, named: Sequence[Room]) -> int:
    """Return how many cards are asked for; NoSuchCard for more than there are to choose from."""
    wanted = len(named) if ask.count is None else ask.count
    if wanted > len(named):
        raise NoSuchCard(
            f"{wanted} cards are asked for{ask.where('count')}, and there {_are(len(named))} to "
            "choose from; ask for fewer or see gpushare ls"
        )
    most = ask.bounds.ceilings.count
    if ask.count is None and most is not None and wanted > most:
        where = ask.bounds.ceilings.said("count")
        raise NoRoom(
            f"all {wanted} cards are asked for, above the ceiling {most}{where}; ask for {most}"
        )
    return wanted


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"
