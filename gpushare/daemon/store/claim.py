# SPDX-License-Identifier: Apache-2.0
"""The ledger's record of a ResourceClaim: parts of cards that several containers share.

A prepared claim is a reservation. Each container of it is a tenant with a record of its own, and
what all of them have never exceeds the claim. What none of them has stays reserved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from gpushare.daemon.placement.model import AllocationUse, Card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import CardAllocation, TenantRecord, from_json, tuple_of
from gpushare.quota.size import exact_size, format_size

#: The UID of an object of Kubernetes; it is a part of file names.
UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", re.ASCII)
#: The name of a request in a claim (a label of RFC 1123); it is a part of file names, too.
_REQUEST: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
PREFIX: Final = "claim-"  # of the file in the ledger


@dataclass(frozen=True)
class ClaimedDevice:
    """One result of the scheduler: a part of a card, for one request of the claim.

    ValueError for an amount that nothing can have, and for a name that no request has.
    """

    request: str
    card: str  # UUID
    memory_bytes: int
    cores: int = 0  # percent of the card; 0: none
    share: str = ""  # the scheduler's name for the part
    whole: bool = False  # all of the card

    def __post_init__(self) -> None:
        """Refuse an amount that would make the sum of a card's allocations wrong."""
        if self.memory_bytes <= 0 or not 0 <= self.cores <= 100:
            raise ValueError(f"{self.memory_bytes} bytes and {self.cores} % of a card")
        if not _REQUEST.fullmatch(self.request):
            raise ValueError(f"{self.request!r} is not the name of a request")


@dataclass(frozen=True)
class ClaimRecord:
    """A prepared claim. `pods` are the UIDs of the pods that may use it."""

    section: ClassVar = "claim"  # of its file

    uid: str
    namespace: str
    name: str
    pods: tuple[str, ...] = ()
    devices: tuple[ClaimedDevice, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of its file in the ledger."""
        return PREFIX + self.uid

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"claim {self.namespace}/{self.name}"

    @property
    def cards(self) -> tuple[str, ...]:
        """The UUIDs of its cards, each once."""
        return tuple(dict.fromkeys(device.card for device in self.devices))

    @property
    def requests(self) -> tuple[str, ...]:
        """The names of its requests that have devices here, each once."""
        return tuple(dict.fromkeys(device.request for device in self.devices))

    def of_requests(self, names: Collection[str]) -> ClaimRecord:
        """Return the claim with the devices of some of its requests alone; of none: all."""
        kept = tuple(device for device in self.devices if device.request in names)
        return replace(self, devices=kept) if names else self

    def part(self, card: str) -> CardAllocation:
        """Return what it has of a card: all of its devices there together. KeyError."""
        devices = [device for device in self.devices if device.card == card]
        if not devices:
            raise KeyError(card)
        whole = any(device.whole for device in devices)
        return CardAllocation(
            card,
            sum(device.memory_bytes for device in devices),
            100 if whole else sum(device.cores for device in devices),
            whole,
        )

    def is_same_grant(self, other: ClaimRecord) -> bool:
        """Whether `other` has the same devices and parameters; `whole` follows from the card."""
        mine, theirs = (
            ([replace(device, whole=False) for device in claim.devices], dict(claim.parameters))
            for claim in (self, other)
        )
        return mine == theirs


def claim_from_json(values: Mapping[str, Any]) -> ClaimRecord:
    """Return the record of a claim; ValueError, TypeError, LookupError."""
    claim = from_json(ClaimRecord, values, pods=tuple, devices=tuple_of(ClaimedDevice))
    if not UID.fullmatch(claim.uid):
        raise ValueError("it has no UID of a claim")
    return claim


def used_parts(
    card: str, tenants: Iterable[TenantRecord], card_policy: str
) -> dict[str, tuple[int, int]]:
    """Return the bytes and the cores that containers have of a card, by the UID of their claim.

    `card_policy` is the policy that an operator has set for the card, "" for none.
    """
    used: dict[str, tuple[int, int]] = {}
    for record in tenants:
        for allocation in record.allocations if record.claim else ():
            if allocation.uuid == card:
                memory_bytes, cores = used.get(record.claim, (0, 0))
                cores += record.reserved_cores(allocation, card_policy)
                used[record.claim] = memory_bytes + allocation.quota_bytes, cores
    return used


def unused_part(
    claim: ClaimRecord, card: str, used: Mapping[str, tuple[int, int]]
) -> AllocationUse:
    """Return what no container of `claim` has of a card: it stays reserved. KeyError.

    `used` are the card's used_parts.
    """
    part, (memory_bytes, cores) = claim.part(card), used.get(claim.uid, (0, 0))
    return AllocationUse(
        claim.title,
        max(0, part.quota_bytes - memory_bytes),
        max(0, part.cores - cores),
        part.whole,
        key=claim.file,
        is_scheduled=True,
    )


def unused_of_requests(
    claim: ClaimRecord, card: str, tenants: Iterable[TenantRecord], names: Collection[str]
) -> int:
    """Return the bytes of a card that the containers of some of a claim's requests do not have.

    A container that names no request of the claim has a part of all of them.
    """
    used = (
        allocation.quota_bytes
        for record in tenants
        if record.claim == claim.uid and not {*names}.isdisjoint(record.claim_requests or names)
        for allocation in record.allocations
        if allocation.uuid == card
    )
    return max(0, claim.of_requests(names).part(card).quota_bytes - sum(used))


def reservations(
    card: str,
    claims: Iterable[ClaimRecord],
    tenants: Iterable[TenantRecord],
    card_policy: str,
) -> tuple[AllocationUse, ...]:
    """Return what claims have reserved of a card beside what their containers have."""
    of_card = [claim for claim in claims if card in claim.cards]
    if not of_card:
        return ()
    used = used_parts(card, tenants, card_policy)
    unused = (unused_part(claim, card, used) for claim in of_card)
    return tuple(use for use in unused if use.quota_bytes or use.cores or use.whole)


def refuse_above_claim(
    record: TenantRecord,
    claim: ClaimRecord,
    others: Sequence[TenantRecord],
    cards: Sequence[Card],
    policy_of: Callable[[str], str],
) -> None:
    """Raise NoRoom if `record` and the `others` together would have more than their `claim`.

    `policy_of` returns the policy that an operator has set for a card, "" for none.
    """
    for allocation in record.allocations:
        uuid, policy = allocation.uuid, policy_of(allocation.uuid)
        part, left = claim.part(uuid), unused_part(claim, uuid, used_parts(uuid, others, policy))
        where = f"of card {next((card.index for card in cards if card.uuid == uuid), uuid)}"
        if allocation.whole:
            if left.quota_bytes < part.quota_bytes:
                raise NoRoom(
                    f"another container of {claim.title} has a part {where}, and {record.title} "
                    "requests all of it. Use the claim in one container, or request a share in each"
                )
            continue
        cores = record.reserved_cores(allocation, policy)
        if allocation.quota_bytes > left.quota_bytes:
            raise NoRoom(
                f"{record.title} requests {format_size(allocation.quota_bytes)} {where}, and "
                f"{claim.title} has {format_size(left.quota_bytes)} of "
                f"{format_size(part.quota_bytes)} left there. To divide a claim among containers, "
                f"set the part of each but the last one, for example "
                + _line(record, "memory", exact_size(left.quota_bytes or part.quota_bytes // 2))
            )
        if cores > left.cores:
            raise NoRoom(
                f"{record.title} requests {cores} % of the compute {where}, and {claim.title} has "
                f"{left.cores} of {part.cores} % left there. To divide a claim among containers, "
                "set the part of each, for example "
                + _line(record, "cores", str(left.cores or part.cores // 2))
            )


def _line(record: TenantRecord, key: str, text: str) -> str:
    """Return the annotation that requests a part of a claim for a container."""
    return f'gpushare.io/container.{record.container or "NAME"}.{key}: "{text}"'
