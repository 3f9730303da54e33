# SPDX-License-Identifier: Apache-2.0
"""The words of a refusal: every card with its reason, and only such advice as would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushare.daemon.cards.capacity import Room
from gpushare.daemon.placement.ask import Ask
from gpushare.daemon.placement.obstacle import LESS, MORE, Obstacle

_SEE = "see gpushare ls"


def refusal(
    ask: Ask, wanted: int, rooms: Sequence[Room], why: Mapping[str, Obstacle], *, less_helps: bool
) -> str:
    """Return why fewer than `wanted` of `rooms` can be taken; `why` is by the card's UUID.

    `less_helps`: who asks for as little as can be would be given it.
    """
    each = "; ".join(
        f"card {room.card.index} {why[room.card.uuid].text if room.card.uuid in why else 'fits'}"
        for room in rooms
    )
    found = [why[room.card.uuid] for room in rooms if room.card.uuid in why]
    advice = _fixes(ask, [one for one in found if less_helps or one.fix != LESS])
    if wanted > 1:
        fit = len(rooms) - len(why)
        what = f"{wanted} whole cards" if ask.whole else f"{wanted} cards with {ask} each"
        many = f"{what} are asked for, and {fit} of {len(rooms)} have room"
        fewer = [f"ask for fewer{ask.where('count')}"] if fit else []
        return f"{many}: {each}; {_either([*fewer, *advice, _SEE])}"
    if advice == [MORE]:
        return f"{ask} holds not even one CUDA context: {each}; {MORE}"
    if ask.whole:  # the caller knows how a share is asked for instead
        return f"no card is free for itself: {each}; {_either([*advice, _SEE])}"
    return f"no card has room for {ask}: {each}; {_either([*advice, _SEE])}"


def _fixes(ask: Ask, why: Sequence[Obstacle]) -> list[str]:
    """Return what each obstacle would take, once; of which keys less is to be asked."""
    keys = {one.key for one in why if one.fix == LESS}
    if "memory" in keys:
        keys.add("memory-percent")
    where = [text for key, text in ask.said.items() if key in keys]
    said = f" ({', '.join(where)})" if where else ""
    fixes = dict.fromkeys(one.fix for one in why if one.fix)
    return [f"{fix}{said}" if fix == LESS else fix for fix in fixes]


def _either(fixes: Sequence[str]) -> str:
    return fixes[0] if len(fixes) == 1 else f"{', '.join(fixes[:-1])} or {fixes[-1]}"


def refusal_of_all(ask: Ask, over: Obstacle, *, less_helps: bool) -> str:
    """Return why no set of cards may be taken, though each by itself could be: `over` of all."""
    advice = _fixes(ask, [over] if less_helps else [])
    return f"no card can be given for {ask}: {over.text}; {_either([*advice, 'see gpushare ps'])}"
