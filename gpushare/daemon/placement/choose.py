# SPDX-License-Identifier: Apache-2.0
"""Which cards a request gets: pure, from what is asked and what each card has left.

Binpack takes the fullest card that still fits, so that whole cards stay whole; spread the emptiest.
A refusal says of every card why it was not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.daemon.cards.capacity import Promise, Room
from gpushare.daemon.cards.card import Card
from gpushare.daemon.placement.bounds import Bounds, Wanted
from gpushare.daemon.policy import FIXED, policy_on, reserved_cores
from gpushare.errors import UserError
from gpushare.quota import format_size

_GIB: Final = 1 << 30
_SHOWN: Final = 8  # tenants of a card that a refusal names


class NoRoom(UserError):
    """No card, or not enough of them, can give what is asked."""


class NoSuchCard(UserError):
    """A card was named that this machine does not have."""


@dataclass(frozen=True)
class Ask:
    """What has to be placed, per card.

    For a share exactly one of `memory_bytes` and `memory_percent` is set. How many of the `cores`
    are set aside says the policy that holds on the card: the card's own, where it has one and
    `policy_is_set` (by the operator) is not there. `count` None is every card. `devices` are
    indices or UUIDs, `minors` the N of /dev/nvidiaN; either narrows the choice when not empty.
    `bounds` is what the node's policy leaves of each card.
    """

    whole: bool = False
    count: int | None = 1
    memory_bytes: int | None = None
    memory_percent: int | None = None
    memory_limit_bytes: int | None = None
    cores: int = 0
    policy: str = FIXED
    policy_is_set: bool = False
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    spread: bool = False
    bounds: Bounds = field(default_factory=Bounds)

    def bytes_of(self, card: Card) -> int:
        """Return what is asked of `card`, in bytes."""
        if self.whole:
            return card.memory_bytes
        if self.memory_percent is not None:
            return card.memory_bytes * self.memory_percent // 100
        assert self.memory_bytes is not None
        return self.memory_bytes

    def cores_of(self, room: Room) -> int:
        """Return how many cores would be set aside for it, in percent of the card."""
        if self.whole:
            return 100
        policy = policy_on(self.policy, self.cores, room.policy, is_set=self.policy_is_set)
        return reserved_cores(policy, self.cores)

    def wanted_of(self, room: Room) -> Wanted:
        """Return all that it would have of a card."""
        memory_bytes = self.bytes_of(room.card)
        most_bytes = max(memory_bytes, self.memory_limit_bytes or 0)
        return Wanted(memory_bytes, most_bytes, self.cores_of(room), self.whole)

    def __str__(self) -> str:
        """Return `8 GiB`, `10 % of its memory and 30 % of its compute`, `a whole card`."""
        if self.whole:
            return "a whole card"
        if self.memory_percent is not None:
            memory = f"{self.memory_percent} % of its memory"
        else:
            assert self.memory_bytes is not None
            memory = format_size(self.memory_bytes)
        cores = reserved_cores(self.policy, self.cores)
        return f"{memory} and {cores} % of its compute" if cores else memory


@dataclass(frozen=True)
class Placed:
    """One card that was taken, and how much of it."""

    card: Card
    memory_bytes: int
    cores: int
    whole: bool


def place(ask: Ask, rooms: Sequence[Room], max_shares: int) -> tuple[Placed, ...]:
    """Return a place on each card that `ask` gets, by index; NoRoom or NoSuchCard otherwise."""
    if not rooms:
        raise NoRoom("this machine has no card; see gpushare doctor")
    candidates = _named(ask, rooms)
    wanted = len(candidates) if ask.count is None else ask.count
    if wanted > len(candidates):
        raise NoSuchCard(
            f"{wanted} cards are asked for, and there {_are(len(candidates))} to choose from; "
            "ask for fewer or see gpushare ls"
        )
    most = ask.bounds.ceilings.count
    if ask.count is None and most is not None and wanted > most:
        where = ask.bounds.ceilings.said("count")
        raise NoRoom(
            f"all {wanted} cards are asked for, above the ceiling {most}{where}; ask for {most}"
        )
    why_not = {room.card.uuid: _why_not(ask, room, max_shares) for room in candidates}
    fitting = [room for room in candidates if why_not[room.card.uuid] is None]
    if len(fitting) < wanted:
        raise NoRoom(_refusal(ask, wanted, candidates, why_not))
    taken = sorted(fitting, key=lambda room: _order(ask, room))[:wanted]
    return tuple(
        Placed(room.card, ask.bytes_of(room.card), ask.cores_of(room), ask.whole)
        for room in sorted(taken, key=lambda room: room.card.index)
    )


def grows(room: Room, key: str, tenant: str, memory_bytes: int) -> None:
    """Raise NoRoom where `room` cannot promise tenant `key` as much as `memory_bytes` in all."""
    own = next((promise for promise in room.promises if promise.key == key), Promise(tenant, 0))
    if memory_bytes - own.memory_bytes - own.borrowed_bytes > room.free_bytes:
        more_bytes = memory_bytes - own.memory_bytes
        raise NoRoom(
            f"the card of {tenant} has no room to grow by {format_size(more_bytes)}: "
            f"{_state(room)}; ask for less or see gpushare ls"
        )


def sets_aside(room: Room, key: str, tenant: str, cores: int) -> None:
    """Raise NoRoom where `room` cannot set `cores` percent aside for tenant `key`."""
    others = replace(room, promises=tuple(one for one in room.promises if one.key != key))
    if cores > others.cores_free:
        raise NoRoom(
            f"the card of {tenant} has no room for {cores} % of its compute: card "
            f"{room.card.index} has {others.cores_free} % left{_who_cores(others)}; "
            "ask for less, or for policy best-effort, or see gpushare ls"
        )


def _named(ask: Ask, rooms: Sequence[Room]) -> list[Room]:
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


def _each_once(named: Sequence[tuple[str, Room]]) -> list[Room]:
    """Return the cards; NoSuchCard where an index and a UUID are one card's."""
    first: dict[str, str] = {}
    for name, room in named:
        other = first.setdefault(room.card.uuid, name)
        if other != name:
            raise NoSuchCard(f"{other} and {name} are the same card; name each card once")
    return [room for _, room in named]


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


def _there_are(rooms: Sequence[Room]) -> str:
    cards = ", ".join(f"{room.card.index} ({room.card.model})" for room in rooms)
    return f"this machine has card {cards}" if len(rooms) == 1 else f"this machine has {cards}"


def _why_not(ask: Ask, room: Room, max_shares: int) -> str | None:
    """Return why `room` cannot be taken, as the end of "card 0 ..."; None when it can."""
    if room.health != "ok":
        return f"is not well: {room.health}"
    listed = _listed(ask, room.card)
    if listed is not None:
        return listed
    over = ask.bounds.why_not(ask.wanted_of(room), room.card)
    if over is not None:
        return over
    if room.exclusive:
        return f"belongs to {room.promises[0].tenant} alone"
    if ask.whole:
        names = ", ".join(promise.tenant for promise in room.promises[:_SHOWN])
        return f"is shared by {names}" if room.promises else None
    asked = ask.bytes_of(room.card)
    if asked <= room.context_bytes:
        return f"needs {format_size(room.context_bytes)} for one CUDA context alone"
    if asked > room.free_bytes:
        return _state(room, number=False)
    if len(room.promises) >= max_shares:
        return f"has {len(room.promises)} tenants of at most {max_shares} (max_shares)"
    if ask.cores_of(room) > room.cores_free:
        return f"has {room.cores_free} % of its compute left{_who_cores(room)}"
    return None


def _listed(ask: Ask, card: Card) -> str | None:
    if ask.allow and not any(_matches(name, card) for name in ask.allow):
        return f"({card.model}) is not in allow"
    denied = next((name for name in ask.deny if _matches(name, card)), None)
    return f"({card.model}) is in deny" if denied is not None else None


def _matches(name: str, card: Card) -> bool:
    """Whether `name` is this card's UUID or words of its model, in any case: `h200`."""
    return name == card.uuid or name.casefold() in card.model.casefold()


def _order(ask: Ask, room: Room) -> tuple[int, int]:
    if ask.whole:
        return room.foreign_bytes, room.card.index
    return (-room.free_bytes if ask.spread else room.free_bytes), room.card.index


def _refusal(
    ask: Ask, wanted: int, candidates: Sequence[Room], why_not: dict[str, str | None]
) -> str:
    each = "; ".join(
        f"card {room.card.index} {why_not[room.card.uuid] or 'fits'}" for room in candidates
    )
    if wanted > 1:
        fit = sum(reason is None for reason in why_not.values())
        return (
            f"{wanted} cards with {ask} each are asked for, and {fit} of {len(candidates)} have "
            f"room: {each}; ask for fewer{'' if ask.whole else ' or less'}, or see gpushare ls"
        )
    if all(not ask.whole and ask.bytes_of(room.card) <= room.context_bytes for room in candidates):
        return f"{ask} holds not even one CUDA context: {each}; ask for more"
    if ask.whole:  # the caller knows how a share is asked for instead
        return f"no card is free for itself: {each}; see gpushare ls"
    return f"no card has room for {ask}: {each}; ask for less or see gpushare ls"


def _state(room: Room, *, number: bool = True) -> str:
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
    return f"{f'card {room.card.index} ' if number else ''}has {free} of {total} free{taken}"


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


def _who_cores(room: Room) -> str:
    who = [f"{promise.tenant} {promise.cores}" for promise in room.promises if promise.cores]
    return f" ({', '.join(who[:_SHOWN])})" if who else ""


def _short(size: int) -> str:
    """Return a size for a list whose unit is GiB: `4`, `1.1`, or with its own unit below that."""
    shown = format_size(size)
    return shown.removesuffix(" GiB") if size >= _GIB else shown


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"
