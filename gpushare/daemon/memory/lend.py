# SPDX-License-Identifier: Apache-2.0
"""Lending: tenants that asked for a `memory-limit` may use what nobody was promised.

After each look at the driver the limits of each card are decided anew. Before a promise is made on
a card they shrink to what they will be after it, and only then it is seen whether there is room: so
a promised byte is never lent. A tenant that allocates at that very moment either sees the smaller
limit, or is seen to use the memory: it publishes what it takes before it reads its limit, and we
write the limit before we read what it takes. All of this is the decide thread's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare.daemon.cards.capacity import Promise, Room
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.node import Node
from gpushare.daemon.policy.lending import Part, decide

_WITHHELD_SECONDS: Final = 10.0


class Lending:
    """Decides the limits again whenever it is asked to, one time after another."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waits = False

    def again(self) -> None:
        """Decide soon, on the decide thread; any thread may ask, and as often as it likes."""
        if self._waits or not has_borrower(self._node):
            return
        self._waits = True
        self._node.decide.submit(self._decide)

    def _decide(self) -> None:
        self._waits = False
        lend(self._node)


def has_borrower(node: Node) -> bool:
    """Whether any tenant may be lent anything."""
    return any(
        holding.most_bytes > holding.memory_bytes
        for entry in node.ledger.entries.values()
        for holding in entry.holdings
    )


def lend(node: Node) -> None:
    """Let every tenant use what it may now; of a card that is not heard or not well none more.

    Nor while it is in doubt what is promised: it could be lent.
    """
    if node.loaded().truth.view.stale or node.doubt.why:
        return
    for room in node.rooms():
        if room.health != "ok" or time.monotonic() < node.withheld.get(room.card.uuid, 0.0):
            continue
        limits = _limits(room, 0)
        for promise in room.promises:
            if limits[promise.key] != promise.limit_bytes:
                _write(promise.key, room.card.uuid, limits[promise.key], node)


def withhold(uuid: str, node: Node) -> None:
    """Lend nothing more of a card for a while: somebody lacks what it was promised of it.

    Who uses what it was lent keeps that: it was given, and somebody else has more than it may.
    """
    node.withheld[uuid] = time.monotonic() + _WITHHELD_SECONDS
    for room in node.rooms():
        for promise in room.promises if room.card.uuid == uuid else ():
            least = max(promise.memory_bytes, promise.used_bytes)
            if least < promise.limit_bytes:
                _write(promise.key, uuid, least, node)


def make_room(wanted: Mapping[str, int], rooms: Sequence[Room], node: Node) -> bool:
    """Lend no more than leaves room for a promise of `wanted` bytes by card uuid.

    True where a limit had to shrink for it: `rooms` have to be looked at again, for a tenant may
    have taken what it still could.
    """
    shrunk = False
    for room in rooms:
        more = wanted.get(room.card.uuid, 0)
        lent = sum(promise.memory_bytes + promise.lent_bytes for promise in room.promises)
        if more <= 0 or lent + more <= room.tenants_bytes:
            continue
        limits = _limits(room, more)
        for promise in room.promises:
            if limits[promise.key] < promise.limit_bytes:
                _write(promise.key, room.card.uuid, limits[promise.key], node)
                shrunk = True
    return shrunk


def _limits(room: Room, promised_bytes: int) -> dict[str, int]:
    """Return what each tenant may use of a card of which `promised_bytes` more are promised."""
    limits = decide(room.tenants_bytes - promised_bytes, [_part(one) for one in room.promises])
    return {one.key: limit for one, limit in zip(room.promises, limits, strict=True)}


def _part(promise: Promise) -> Part:
    most = max(promise.memory_bytes, promise.most_bytes)
    return Part(promise.memory_bytes, most, promise.used_bytes)


def _write(key: str, uuid: str, limit_bytes: int, node: Node) -> None:
    entry = node.ledger.entries[key]
    for number, holding in enumerate(entry.holdings):
        if holding.uuid == uuid:
            hard_limit.change(entry, number, limit_bytes, node)
