# SPDX-License-Identifier: Apache-2.0
"""Cards as people name them: an index, a UUID or the start of it, the N of /dev/nvidiaN."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.daemon.cards.capacity import Room
from gpushare.daemon.placement.ask import Ask, NoSuchCard


def candidates(ask: Ask, rooms: Sequence[Room]) -> list[Room]:
    """Return the cards that may be taken at all; NoSuchCard for one that is not there."""
    if ask.devices:
        return _each_once([(name, find_card(name, rooms)) for name in ask.devices])
    if ask.minors:
        by_minor = {room.card.minor: room for room in rooms}
        missing = next((minor for minor in ask.minors if minor not in by_minor), None)
        if missing is not None:
            raise NoSuchCard(f"/dev/nvidia{missing} is no card here: {_there_are(rooms)}")
        return [by_minor[minor] for minor in ask.minors]
    return list(rooms)


def find_card(name: str, rooms: Sequence[Room]) -> Room:
    """Return the card that `name` is: its index, its UUID or the start of it; NoSuchCard."""
    for room in rooms:
        if name in {str(room.card.index), room.card.uuid}:
            return room
    # As nvidia-smi does, a UUID may be shortened as long as it is one card's only.
    close = [room for room in rooms if len(name) >= 8 and room.card.uuid.startswith(name)]
    if len(close) == 1:
        return close[0]
    raise NoSuchCard(f"card {name} does not exist: {_there_are(rooms)}; see gpushare ls")


def _each_once(named: Sequence[tuple[str, Room]]) -> list[Room]:
    """Return the cards; NoSuchCard where an index and a UUID are one card's."""
    first: dict[str, str] = {}
    for name, room in named:
        other = first.setdefault(room.card.uuid, name)
        if other != name:
            raise NoSuchCard(f"{other} and {name} are the same card; name each card once")
    return [room for _, room in named]


def _there_are(rooms: Sequence[Room]) -> str:
    cards = ", ".join(f"{room.card.index} ({room.card.model})" for room in rooms)
    return f"this machine has card {cards}" if len(rooms) == 1 else f"this machine has {cards}"
