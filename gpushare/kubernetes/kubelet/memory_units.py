# SPDX-License-Identifier: Apache-2.0
"""A card's memory as devices that a kubelet counts: one id for each unit of memory. Pure.

The kubelet counts the healthy ids of all cards together. It knows nothing of cards, so a request
goes to one card by the ids that GetPreferredAllocation selects. What the scheduler may not hand out
is unhealthy: the free ids of a card that takes no more containers, and for a while after a request
that no card had room for, those of all cards but one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from gpushare.errors import UserError
from gpushare.kubernetes.kubelet.grpc_service import (
    HEALTHY,
    UNHEALTHY,
    ListAndWatchResponse,
    Values,
)
from gpushare.protocol.kubernetes import RESOURCE
from gpushare.quota.errors import BadValue
from gpushare.quota.size import exact_size, format_size, parse_size

if TYPE_CHECKING:
    from gpushare.kubernetes.cards import SchedulableCard

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
#: The kubelet accepts messages of 4 MiB; the node's own margin is a quarter of it.
MAX_LIST_BYTES: Final = 3 * _MIB
#: Names whose unit is known: gpushare's, and other vendors' whose manifests count like gpushare.
UNITS: Final[Mapping[str, int]] = {
    RESOURCE: _GIB,
    "aliyun.com/gpu-mem": _GIB,
    "tencent.com/vcuda-memory": 256 * _MIB,
}
#: The kubelet's IsExtendedResourceName: a domain, a slash, a name of at most 63 characters.
_RESOURCE_NAME: Final = re.compile(
    r"(?!requests\.)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_ID: Final = re.compile(r"((?:GPU|MIG)-[^.]+)\.([0-9]+)")


class NoDevices(UserError):
    """The ids of a request are not one container's part of one or more cards."""


@dataclass(frozen=True)
class MemoryResource:
    """An extended resource: its name, and the memory that one of it stands for."""

    name: str
    unit_bytes: int

    def amount(self, count: int) -> str:
        """Return the memory of so many units, for a message."""
        return format_size(count * self.unit_bytes)


def memory_resource(name: str = "", unit: str = "") -> MemoryResource:
    """Return the resource with this name and unit; both may be empty. UserError if invalid."""
    try:
        unit_bytes = parse_size(unit) if unit else 0
    except BadValue as error:
        raise UserError(f"--unit {unit}: {error}") from error
    if unit_bytes % _MIB:
        raise UserError(f"--unit {unit}: not a number of MiB. Use, for example, --unit 256MiB")
    if not name:
        unit_bytes = unit_bytes or UNITS[RESOURCE]
        # memory-gib, memory-256mib
        shown = re.sub(r"^1(?=[a-z])", "", exact_size(unit_bytes).lower())
        return MemoryResource(f"{RESOURCE.rpartition('-')[0]}-{shown}", unit_bytes)
    if not _RESOURCE_NAME.fullmatch(name) or "kubernetes.io/" in name:
        raise UserError(
            f"--resource {name}: not the name of an extended resource. Use a domain and a name, "
            f"for example {RESOURCE}"
        )
    known = UNITS.get(name)
    if known is None and not unit_bytes:
        raise UserError(f"--resource {name}: its unit is not known. Add, for example, --unit 1GiB")
    if known is not None and unit_bytes not in {0, known}:
        raise UserError(
            f"--unit {unit}: the unit of {name} is {exact_size(known)}. Omit --unit, or use "
            "another --resource"
        )
    return MemoryResource(name, known or unit_bytes)


def is_own(device: str) -> bool:
    """Whether a device id is of this form, and not one of another vendor's plugin."""
    return _ID.fullmatch(device) is not None


def devices(
    cards: Sequence[SchedulableCard],
    resource: MemoryResource,
    healthy: Mapping[str, Collection[int]],
) -> list[Values]:
    """Return the `Device` messages of all cards; UserError if there are too many for the kubelet.

    `healthy` has the numbers of the healthy ids of each card, by its UUID.
    """
    _refuse_too_many(cards, resource)
    return [
        _device(card, number, is_healthy=number in healthy[card.uuid])
        for card in cards
        for number in range(_count(card, resource.unit_bytes))
    ]


def healthy_units(
    cards: Sequence[SchedulableCard],
    resource: MemoryResource,
    used: Iterable[str] = (),
    *,
    only_largest: bool = False,
) -> dict[str, frozenset[int]]:
    """Return the numbers of the ids that the kubelet may count, by the UUID of their card.

    Ids in use are among them unless the card has failed: the scheduler subtracts them from the
    sum, so the free ids of other cards would be hidden. Of the others, the first of each card are,
    as many as the scheduler may hand out; `only_largest`: those of the card that has the most.
    """
    in_use, unit = _by_card(used), resource.unit_bytes
    healthy, free = {}, {}
    for card in cards:
        total = range(_count(card, unit))
        held = frozenset(in_use.get(card.uuid, ())) & frozenset(total)
        more = 0 if card.is_closed else card.schedulable_bytes // unit - len(held)
        healthy[card.uuid] = held if card.is_working else frozenset[int]()
        free[card.uuid] = frozenset(
            islice((number for number in total if number not in held), max(0, more))
        )
    largest = max(free, key=lambda uuid: len(free[uuid]), default="")
    return {
        uuid: numbers if only_largest and uuid != largest else numbers | free[uuid]
        for uuid, numbers in healthy.items()
    }


#: So long, only the largest free part of one card is offered after a refusal: the scheduler would
#: send the next pod at once. Whether a pod still waits cannot be known.
REFUSED_SECONDS: Final = 60.0
REFUSED_MAX_SECONDS: Final = 600.0
#: A kubelet reports a change within ten seconds. What is refused until then was on its way.
REPORT_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Refusals:
    """Requests that no card had room for: until when only the largest free part is offered."""

    first: float = 0.0  # of those that were refused before the kubelet's next report
    seconds: float = 0.0
    until: float = 0.0

    def with_another(self, now: float) -> Refusals:
        """Return the same with a refusal at `now`, which doubles the time if it is a further one.

        After ten minutes without any, the next one is a first one again.
        """
        seconds, first = self.seconds, self.first
        if not seconds or now >= self.until + REFUSED_MAX_SECONDS:
            first, seconds = now, REFUSED_SECONDS
        elif now >= first + REPORT_SECONDS:
            first, seconds = now, min(2 * seconds, REFUSED_MAX_SECONDS)
        return Refusals(first, seconds, now + seconds)


def tenants_by_card(containers: Iterable[Iterable[str]]) -> Counter[str]:
    """Return how many of the containers, each by its ids, have a part of each card."""
    return Counter(uuid for ids in containers for uuid in {_card_of(device) for device in ids})


def capacities(cards: Iterable[SchedulableCard], resource: MemoryResource) -> dict[str, int]:
    """Return the number of units of each card, by its UUID."""
    return {card.uuid: _count(card, resource.unit_bytes) for card in cards}


def preferred(  # noqa: PLR0913, PLR0917 - a request, and what it is held against
    available: Iterable[str],
    required: Iterable[str],
    size: int,
    cards: Sequence[SchedulableCard],
    resource: MemoryResource,
    placement: str = "",
) -> list[str]:
    """Return `size` of the ids, `required` among them, on as few cards as they fit; NoDevices.

    One card is enough unless none is that large; then each of several cards gives the same number.
    Of the cards that have room and take another container, `placement` selects those with the least
    or, if it is spread, with the most left of memory, then of compute, then of tenants.
    """
    free, held = _by_card(available), _by_card(required)
    known = {card.uuid: card for card in cards}
    count = _card_count(size, capacities(cards, resource))
    part = size // count
    fits = {uuid for uuid, numbers in free.items() if len(numbers) >= part and uuid in known}
    open_ones = {uuid for uuid in fits if not known[uuid].is_closed}
    sign = -1 if placement == "spread" else 1

    def left(uuid: str) -> tuple[int, int, int, str]:
        card = known[uuid]
        return sign * len(free[uuid]), sign * card.cores_left, sign * card.tenants_left, uuid

    others = sorted(open_ones - held.keys(), key=left)
    chosen = [*held, *others[: count - len(held)]]
    if not held.keys() <= fits or len(chosen) != count:
        closed = [
            f"card {uuid} has no {known[uuid].lacks} left" for uuid in sorted(fits - open_ones)
        ]
        most = max((len(numbers) for numbers in free.values()), default=0)
        why = ", ".join(closed) or f"the largest part is {most}"
        raise NoDevices(f"no card has {part} units left for another container: {why}")
    return [
        _id(uuid, number)
        for uuid in chosen
        for number in [*held.get(uuid, ()), *_others(free[uuid], held.get(uuid, ()))][:part]
    ]


def parts(ids: Iterable[str], resource: MemoryResource) -> list[tuple[str, int]]:
    """Return the cards of a container's ids, each with its bytes, the same on each; NoDevices."""
    counts = {uuid: len(numbers) for uuid, numbers in _by_card(ids).items()}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{resource.amount(count)} of {uuid}" for uuid, count in counts.items())
        total = resource.amount(sum(counts.values()))
        raise NoDevices(
            f"{resource.name}: no card of this node has {total} left, only parts of several "
            f"({each}). Request less, or wait until a container has ended"
        )
    return [(uuid, count * resource.unit_bytes) for uuid, count in counts.items()]


def _card_count(size: int, capacity: Mapping[str, int]) -> int:
    largest = max(capacity.values(), default=0)
    for cards in range(1, len(capacity) + 1):
        if size % cards == 0 and size // cards <= largest:
            return cards
    raise NoDevices(
        f"{size} units cannot be divided evenly over {len(capacity)} cards of {largest} units"
    )


def _others(numbers: Sequence[int], units: Sequence[int]) -> list[int]:
    return [number for number in numbers if number not in set(units)]


def _by_card(ids: Iterable[str]) -> dict[str, list[int]]:
    units: dict[str, list[int]] = {}
    for device in ids:
        match = _ID.fullmatch(device)
        if match is None:
            raise NoDevices(f"{device} is not a device of gpushare-node")
        units.setdefault(match[1], []).append(int(match[2]))
    return {uuid: sorted(numbers) for uuid, numbers in sorted(units.items())}


def _count(card: SchedulableCard, unit_bytes: int) -> int:
    return card.memory_bytes // unit_bytes


def _card_of(device: str) -> str:
    return device.rpartition(".")[0]


def _id(uuid: str, number: int) -> str:
    return f"{uuid}.{number}"


def _device(card: SchedulableCard, number: int, *, is_healthy: bool) -> Values:
    node = card.numa_node
    return {
        "ID": _id(card.uuid, number),
        "health": HEALTHY if is_healthy else UNHEALTHY,
        "topology": None if node is None else {"nodes": [{"ID": node}]},
    }


def _refuse_too_many(cards: Sequence[SchedulableCard], resource: MemoryResource) -> None:
    unit = resource.unit_bytes
    needed = _list_bytes(cards, unit)
    if needed <= MAX_LIST_BYTES:
        return
    fits = _MIB
    while fits <= unit or _list_bytes(cards, fits) > MAX_LIST_BYTES:
        fits *= 2
    raise UserError(
        f"{resource.name}: {sum(_count(card, unit) for card in cards)} units of "
        f"{exact_size(unit)} are a list of {format_size(needed)}, more than a kubelet accepts. "
        f"Use --unit {exact_size(fits)} or larger"
    )


def _list_bytes(cards: Sequence[SchedulableCard], unit: int) -> int:
    """Return an upper bound of the length of the message that lists all devices."""
    return sum(
        (count := _count(card, unit))
        * ListAndWatchResponse(devices=[_device(card, count, is_healthy=False)]).ByteSize()
        for card in cards
    )
