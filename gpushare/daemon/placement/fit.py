# SPDX-License-Identifier: Apache-2.0
"""Whether one card can be taken for what is asked, and if not, why."""

from __future__ import annotations

from dataclasses import replace

from gpushare.daemon.cards.capacity import Promise, Room
from gpushare.daemon.placement.ask import Ask
from gpushare.daemon.placement.model import matches
from gpushare.daemon.placement.obstacle import LESS, MORE, Obstacle
from gpushare.quota import format_size

_GIB = 1 << 30
_SHOWN = 8  # tenants of a card that a refusal names


def why_not(ask: Ask, room: Room) -> Obstacle | None:
    """Return why `room` cannot be taken, as the end of "card 0 ..."; None when it can."""
    return (
        _closed(ask, room)
        or _listed(ask, room)
        or _of_mode(ask, room)
        or _taken(ask, room)
        or ask.bounds.why_not(ask.wanted_of(room), room.card)
        or (None if ask.whole else _too_little(ask, room))
    )


def _closed(ask: Ask, room: Room) -> Obstacle | None:
    if room.health != "ok":
        return Obstacle(f"is not well: {room.health}")
    if room.cordoned is None:
        return None
    why = f" ({room.cordoned})" if room.cordoned else ""
    helps = why_not(ask, replace(room, cordoned=None)) is None
    fix = f"gpushare card uncordon {room.card.index}" if helps else ""
    return Obstacle(f"is cordoned{why}", fix)


def _listed(ask: Ask, room: Room) -> Obstacle | None:
    card = room.card
    if ask.allow and not any(matches(name, card) for name in ask.allow):
        key, how = "allow", "is not in allow"
    elif any(matches(name, card) for name in ask.deny):
        key, how = "deny", "is in deny"
    else:
        return None
    helps = why_not(replace(ask, allow=(), deny=()), room) is None
    return Obstacle(f"({card.model}) {how}", f"change {key}{ask.where(key)}" if helps else "")


def _of_mode(ask: Ask, room: Room) -> Obstacle | None:
    where = f" ({room.mode_said})" if room.mode_said else ""
    if ask.whole and room.mode == "shared":
        return Obstacle(f"is for shares only{where}")
    if not ask.whole and room.mode == "exclusive":
        return Obstacle(f"is given as a whole only{where}")
    return None


def _taken(ask: Ask, room: Room) -> Obstacle | None:
    if room.exclusive:
        return Obstacle(f"belongs to {room.promises[0].tenant} alone")
    if ask.whole:
        names = ", ".join(promise.tenant for promise in room.promises[:_SHOWN])
        return Obstacle(f"is shared by {names}") if room.promises else None
    if len(room.promises) >= room.max_shares:
        most = f"{room.max_shares} ({room.max_shares_said})"
        return Obstacle(f"has {len(room.promises)} tenants of at most {most}")
    return None


def _too_little(ask: Ask, room: Room) -> Obstacle | None:
    asked = ask.bytes_of(room.card)
    if asked <= room.context_bytes:
        return Obstacle(f"needs {format_size(room.context_bytes)} for one CUDA context alone", MORE)
    if asked > room.free_bytes:
        return Obstacle(state(room), LESS, "memory")
    if ask.cores_of(room) > room.cores_free:
        left = f"has {room.cores_free} % of its compute left{who_cores(room)}"
        return Obstacle(left, LESS, "cores")
    return None


def state(room: Room) -> str:
    """Return `has 126 of 140 GiB free (train 4, serve 8, foreign 1.1 by pid 812 Xorg)`."""
    total = format_size(room.card.memory_bytes)
    free = format_size(room.free_bytes)
    if free.rpartition(" ")[2] == total.rpartition(" ")[2]:
        free = free.rpartition(" ")[0]
    who = [_who_has(promise) for promise in room.promises]
    if len(who) > _SHOWN:
        rest = sum(
            promise.memory_bytes + promise.borrowed_bytes for promise in room.promises[_SHOWN:]
        )
        who = [*who[:_SHOWN], f"{len(who) - _SHOWN} more {_short(rest)}"]
    if room.foreign_bytes:
        who.append(f"foreign {_short(room.foreign_bytes)}{_who_foreign(room)}")
    if room.reserve_bytes:
        who.append(f"reserve {_short(room.reserve_bytes)}")
    taken = f" ({', '.join(who)})" if who else ""
    return f"has {free} of {total} free{taken}"


def _who_has(promise: Promise) -> str:
    """Return `train 4`, or `train 4 and 2 borrowed` where it uses more than it was promised.

    `and 2 above it` is what a quota that was made smaller has left.
    """
    has = f"{promise.tenant} {_short(promise.memory_bytes)}"
    if not promise.borrowed_bytes:
        return has
    how = "borrowed" if promise.most_bytes > promise.memory_bytes else "above it"
    return f"{has} and {_short(promise.borrowed_bytes)} {how}"


def _who_foreign(room: Room) -> str:
    if not room.foreign:
        return " until lately"
    largest = max(room.foreign, key=lambda process: process.bytes)
    others = len(room.foreign) - 1
    return f" by pid {largest.pid} {largest.name}" + (f" and {others} more" if others else "")


def who_cores(room: Room) -> str:
    """Return ` (train 30, serve 60)`: whom the card's cores are set aside for."""
    who = [f"{promise.tenant} {promise.cores}" for promise in room.promises if promise.cores]
    return f" ({', '.join(who[:_SHOWN])})" if who else ""


def _short(size: int) -> str:
    """Return a size for a list whose unit is GiB: `4`, `1.1`, or with its own unit below that."""
    shown = format_size(size)
    return shown.removesuffix(" GiB") if size >= _GIB else shown
