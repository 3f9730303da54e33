# SPDX-License-Identifier: Apache-2.0
"""Where an evicted tenant is restored to: room is reserved for it before the driver is asked.

A restore that fails for want of memory leaves a process that nothing restores any more
(NVIDIA/cuda-checkpoint issue 44). So the ledger has the room first, burst memory of others is taken
back for it, and then the driver's own figure of free memory is looked at. The decide thread's.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

from gpushare.daemon.eviction.checkpoint_client import why_no_moves
from gpushare.daemon.eviction.preconditions import CannotRestore
from gpushare.daemon.limits.burst import reclaim_burst, reclaim_rounds
from gpushare.daemon.placement.choose import find_obstacle
from gpushare.daemon.placement.model import Card, CardCapacity
from gpushare.daemon.placement.request import NoRoom, PlacementRequest, Rank
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.quota.size import format_size

#: What a restore may take beside the memory that was evicted: the driver rounds up.
BESIDE_BYTES: Final = 64 << 20
_SAMPLE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.005


def restored_allocations(
    record: TenantRecord, to: str, state: DaemonState
) -> tuple[CardAllocation, ...]:
    """Return the allocations of a tenant where its cards have room for them; NoRoom.

    `to` is the UUID of the only card that it may be, "": its own cards, or another one if they have
    no room and the driver can move it. The caller records them before anything else is decided.
    """
    if to:
        return _on(record, (to,), state)
    try:
        return _on(record, [one.uuid for one in record.allocations], state)
    except NoRoom:
        for other in other_cards(record, state):
            try:
                return _on(record, (other.uuid,), state)
            except NoRoom:
                continue
        raise


def other_cards(record: TenantRecord, state: DaemonState) -> list[Card]:
    """Return the cards to which a tenant could be moved, whatever their room."""
    return [
        card
        for card in state.node.loaded().cards
        if card.uuid not in {one.uuid for one in record.allocations}
        and not why_not_to(record, card, state)
    ]


def why_not_to(record: TenantRecord, card: Card, state: DaemonState) -> str:
    """Return why a tenant can never be moved to `card`, "" if it can where that has room."""
    driver = state.node.loaded()
    why = why_no_moves(driver.nvml.driver_version)
    if why:
        return why
    if len(record.allocations) != 1:
        return f"it has {len(record.allocations)} cards, and only a container of one can be moved"
    if record.claim:
        return "Kubernetes has allocated its card (ResourceClaim)"
    own = driver.card(origin(record, 0))
    if own is None or (own.model, own.capability) != (card.model, card.capability):
        model = "a card that is gone" if own is None else own.model
        return f"its memory is of {model}, and card {card.index} is {card.model}"
    if card.instance is not None or card.is_divided:
        return f"card {card.index} is divided into MIG instances"
    if not has_card_node(record, card):
        return f"the container has no device node of card {card.index}"
    return ""


def origin(record: TenantRecord, number: int) -> str:
    """Return the UUID of the card that the memory of allocation `number` came from."""
    if record.eviction is None or number >= len(record.eviction.cards):
        return record.allocations[number].uuid
    return record.eviction.cards[number]


def _on(
    record: TenantRecord, uuids: Sequence[str], state: DaemonState
) -> tuple[CardAllocation, ...]:
    """Return the allocations on these cards, by the tenant's card number; NoRoom."""
    wanted = {
        uuid: max(allocation.quota_bytes, record.evicted_bytes(number))
        for number, (uuid, allocation) in enumerate(zip(uuids, record.allocations, strict=True))
    }
    for _ in reclaim_rounds():
        capacities = state.queue.open_to(record.key, state.accounts.capacities(), rank_of(record))
        by_uuid = {capacity.card.uuid: capacity for capacity in capacities}
        for number, uuid in enumerate(uuids):
            if uuid not in by_uuid:
                raise NoRoom(f"the card of {record.title} is gone")
            why = why_no_room(record, number, by_uuid[uuid])
            if why:
                raise NoRoom(why)
        if not reclaim_burst(wanted, capacities, state):
            break
    return tuple(
        replace(allocation, uuid=uuid)
        for uuid, allocation in zip(uuids, record.allocations, strict=True)
    )


def restore_request(record: TenantRecord, state: DaemonState) -> PlacementRequest:
    """Return what the queue has to find for a tenant: its own cards, or one it can be moved to."""
    own = [allocation.uuid for allocation in record.allocations]
    others = [card.uuid for card in other_cards(record, state)]
    parts = [_wanted(record, number) for number in range(len(own))]
    most = max(parts, key=lambda one: one.memory_bytes or 0)
    return replace(most, count=len(own), devices=(*own, *others))


def why_no_room(record: TenantRecord, number: int, capacity: CardCapacity) -> str:
    """Return why a card has no room for the tenant's allocation `number`, "" if it has."""
    request = _wanted(record, number)
    obstacle = find_obstacle(request, capacity)
    if obstacle is None:
        return ""
    return f"card {capacity.card.index} cannot take {record.title} ({request}): it {obstacle.text}"


def _wanted(record: TenantRecord, number: int) -> PlacementRequest:
    allocation = record.allocations[number]
    return PlacementRequest(
        memory_bytes=max(allocation.quota_bytes, record.evicted_bytes(number)),
        cores=allocation.cores,
        policy=record.policy,
        policy_is_set=record.is_set("policy"),
        rank=rank_of(record),
    )


def rank_of(record: TenantRecord) -> Rank:
    """Return the place of a tenant's restore in the order of the queue, as if it arrived last."""
    return record.class_ != "online", record.priority, inf


def await_sample(state: DaemonState) -> None:
    """Wait for a sample of the driver that is newer than now; CannotRestore. The evict thread's."""
    since, until = time.monotonic_ns(), time.monotonic() + _SAMPLE_SECONDS
    while True:
        last = state.observed.last
        if last is not None and last.sample.taken_ns > since and not state.observed.usage.stale:
            return
        if time.monotonic() > until:
            raise CannotRestore(
                "it is not restored: the driver does not report how much memory is free"
            )
        state.sample_now.set()
        time.sleep(_LOOK_SECONDS)


def refuse_without_free_memory(record: TenantRecord, state: DaemonState) -> None:
    """Raise CannotRestore if the driver has less free than is to be restored, by its last sample.

    The room is reserved by now. What takes it is in no allocation: memory of a program that
    bypasses its quota, or of one that has just ended.
    """
    look, driver = state.observed.last, state.node.loaded()
    for number, allocation in enumerate(record.allocations):
        card = driver.card(allocation.uuid)
        if look is None or card is None or allocation.uuid not in look.sample.uses:
            raise CannotRestore(
                f"{record.title} is not restored: the driver does not report the memory of its card"
            )
        free = card.memory_bytes - look.sample.taken_bytes(allocation.uuid)
        needed = record.evicted_bytes(number) + BESIDE_BYTES
        if needed > free:
            raise CannotRestore(
                f"{record.title} is not restored: it needs {format_size(needed)}, and the driver "
                f"has {format_size(max(0, free))} of card {card.index} free"
            )


def write_cards(record: TenantRecord, state: DaemonState) -> None:
    """Have the tenant's page name the cards of its allocations."""
    pages = state.tenants.pages.get(record.key)
    for number, allocation in enumerate(record.allocations):
        if pages is not None and pages.grant.uuid(number) != allocation.uuid:
            pages.grant.set_uuid(number, allocation.uuid)
            pages.grant.publish()


# --- whether a container has the device node of a card ---

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def has_card_node(record: TenantRecord, card: Card) -> bool:
    """Whether the first process of a tenant has the node of `card`.

    A host process has all of the machine's. Nothing of the container is followed: its /dev is what
    its runtime has mounted.
    """
    if record.engine == "host":
        return True
    try:
        root = os.open(f"/proc/{record.pid}/root", _DIRECTORY)
    except OSError:
        return False
    try:
        dev = os.open("dev", _DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except OSError:
        return False
    finally:
        os.close(root)
    try:
        found = os.stat(f"nvidia{card.minor}", dir_fd=dev, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(dev)
    return stat.S_ISCHR(found.st_mode) and os.minor(found.st_rdev) == card.minor
