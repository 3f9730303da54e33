# SPDX-License-Identifier: Apache-2.0
"""Whether a card has what a tenant that is on it is to have more."""

from __future__ import annotations

from dataclasses import replace

from gpushare.daemon.cards.capacity import Promise, Room
from gpushare.daemon.placement.ask import NoRoom
from gpushare.daemon.placement.fit import state, who_cores
from gpushare.quota import format_size


def grows(room: Room, key: str, tenant: str, memory_bytes: int) -> None:
    """Raise NoRoom where `room` cannot promise tenant `key` as much as `memory_bytes` in all."""
    own = next((promise for promise in room.promises if promise.key == key), Promise(tenant, 0))
    if memory_bytes - own.memory_bytes - own.borrowed_bytes > room.free_bytes:
        more_bytes = memory_bytes - own.memory_bytes
        raise NoRoom(
            f"the card of {tenant} has no room to grow by {format_size(more_bytes)}: "
            f"card {room.card.index} {state(room)}; ask for less or see gpushare ls"
        )


def sets_aside(room: Room, key: str, tenant: str, cores: int) -> None:
    """Raise NoRoom where `room` cannot set `cores` percent aside for tenant `key`."""
    others = replace(room, promises=tuple(one for one in room.promises if one.key != key))
    if cores > others.cores_free:
        raise NoRoom(
            f"the card of {tenant} has no room for {cores} % of its compute: card "
            f"{room.card.index} has {others.cores_free} % left{who_cores(others)}; "
            "ask for less, or for policy best-effort, or see gpushare ls"
        )
