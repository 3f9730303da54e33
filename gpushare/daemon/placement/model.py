# SPDX-License-Identifier: Apache-2.0
"""The input of placement: cards, the links between them, and the allocations of each.

The memory that a card can still allocate is its own less the system reserve, the memory of
non-tenant processes, the quotas of its tenants and what they use above their quotas: burst memory,
or memory from before a quota was made smaller. A new quota must be there physically, so none of
these can be allocated twice.

The memory of non-tenant processes is taken at its high-water mark, which follows a fall slowly: a
desktop that grew to 1 GiB a minute ago may do so again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.quota.keys import is_beginning
from gpushare.quota.size import format_size
from gpushare.settings import CardRule


@dataclass(frozen=True)
class MigInstance:
    """The place of a MIG instance: `number` as nvidia-smi -L counts those of a card."""

    card_uuid: str
    card_index: int
    number: int
    gpu_instance: int
    compute_instance: int

    @property
    def names(self) -> tuple[str, str]:
        """Its names in CDI specs: NVIDIA's, by which users know it too, and gpushare's own."""
        kernel = f"gi{self.gpu_instance}:ci{self.compute_instance}"
        return f"{self.card_index}:{self.number}", f"{self.card_index}:{kernel}"


@dataclass(frozen=True)
class Card:
    """One card, or a MIG instance of one, which has an index behind all cards."""

    index: int  # it may change with a reboot, as `minor` may
    uuid: str
    model: str
    memory_bytes: int  # total less what the driver keeps for itself
    minor: int  # N of /dev/nvidiaN
    datacenter: bool = False  # of the kind that cuda-compat packages are made for
    brand: str = ""  # as NVIDIA_REQUIRE_ variables name it; empty: not known
    capability: tuple[int, int] | None = None  # compute capability; None: not known
    name: str = ""  # as the driver reports it: the model with the vendor; empty: not known
    bus_id: str = ""  # PCI address as NVML writes it; empty: not known
    instance: MigInstance | None = None  # None: a card
    is_divided: bool = False  # into MIG instances, which are used instead

    @property
    def little_bytes(self) -> int:
        """So little may be left without the driver being able to use it: a twentieth, or 1 GiB."""
        return max(self.memory_bytes // 20, 1 << 30)


NO_NODE: Final = -1


@dataclass(frozen=True)
class Link:
    """The link between two cards: `kind` as `nvidia-smi topo -m`, `distance` 1 (near) to 70."""

    kind: str
    distance: int


UNKNOWN: Final = Link("?", 70)  # no nearer than any that is known


@dataclass(frozen=True)
class Links:
    """All cards' links, and the NUMA node of each, by UUID; what is not in it is not known."""

    between: Mapping[frozenset[str], Link] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)

    def link(self, one: str, other: str) -> Link:
        """Return what is between two different cards."""
        return self.between.get(frozenset((one, other)), UNKNOWN)

    def node(self, uuid: str) -> int:
        """Return the card's NUMA node; NO_NODE where it is not known."""
        return self.nodes.get(uuid, NO_NODE)


NO_LINKS: Final = Links()


@dataclass(frozen=True)
class NonTenantProcess:
    """A process of no tenant and what it holds of one card."""

    pid: int
    name: str
    bytes: int
    container: str = ""  # which it seems to be in; empty: a program of the host


@dataclass(frozen=True)
class AllocationUse:
    """One tenant's allocation of one card, and its use."""

    tenant: str  # the name that a user knows
    quota_bytes: int
    cores: int = 0  # only if its policy guarantees them
    whole: bool = False
    key: str = ""
    used_bytes: int = 0  # it may be more than the quota
    limit_bytes: int = 0  # the most it may use now, likewise
    burst_limit_bytes: int = 0  # the burst limit; none where it is less than the quota
    is_scheduled: bool = False  # allocated by the scheduler of Kubernetes, which counts it
    added_bytes: int = 0  # of the quota, by an operator, beyond what that scheduler counts
    backend: str = ""  # "mps" for a client of the card's MPS server
    uid: int | None = None  # of a client: the host's

    @property
    def burst_used_bytes(self) -> int:
        """Memory that it uses above its quota."""
        return max(0, self.used_bytes - self.quota_bytes)

    @property
    def burst_granted_bytes(self) -> int:
        """Memory that it has above its quota: it may use it now, or does."""
        return max(self.limit_bytes, self.used_bytes, self.quota_bytes) - self.quota_bytes


@dataclass(frozen=True)
class CardCapacity:
    """A card with all that is taken of it."""

    card: Card
    allocations: tuple[AllocationUse, ...] = ()
    non_tenants: tuple[NonTenantProcess, ...] = ()
    non_tenant_bytes: int = 0  # high-water mark, at least the sum of `non_tenants`
    reserve_bytes: int = 0
    context_bytes: int = 0  # the size of a CUDA context: a quota of no more holds nothing
    health: str = "ok"
    utilization: int | None = None  # percent of its time, as the driver reports it
    unattributed_bytes: int = 0  # in use, and the driver lists no process for it
    policy: str = ""  # the operator's, for its tenants' compute; "" where each has what it asked
    rule: CardRule = field(default_factory=CardRule)  # which requests the operator lets on it
    compute_mode: str = ""  # the driver's, as nvidia-smi names it; "": the default
    cordoned: str | None = None  # why nothing new is placed on it; None: it is
    # Of claims, beside what their containers have, and of tickets that were granted.
    reservations: tuple[AllocationUse, ...] = ()
    withheld: str = ""  # for which waiting request, as the end of "card 0 ..."; "": for none
    backend: str = "interposer"  # the operator's setting for its shares: "interposer" or "mps"
    backend_fault: str = ""  # why no share can have that backend now; "": one can

    def without(self, keys: Collection[str]) -> CardCapacity:
        """Return the same card without the allocations of these tenants."""
        return replace(self, allocations=tuple(u for u in self.allocations if u.key not in keys))

    @property
    def holders(self) -> tuple[AllocationUse, ...]:
        """All that has a part of it."""
        return (*self.allocations, *self.reservations)

    @property
    def allocated_bytes(self) -> int:
        """The sum of the quotas and reservations; of an exclusive card all of it."""
        return sum(use.quota_bytes for use in self.holders)

    @property
    def burst_used_bytes(self) -> int:
        """Memory that tenants use above their quotas."""
        return sum(use.burst_used_bytes for use in self.allocations)

    @property
    def burst_granted_bytes(self) -> int:
        """Memory that tenants have above their quotas, used or not."""
        return sum(use.burst_granted_bytes for use in self.allocations)

    @property
    def allocatable_bytes(self) -> int:
        """Memory that tenants can have at all."""
        return max(0, self.card.memory_bytes - self.reserve_bytes - self.non_tenant_bytes)

    @property
    def available_bytes(self) -> int:
        """Memory that a new container may still get, never below 0."""
        if self.exclusive or self.card.is_divided:
            return 0
        return max(0, self.allocatable_bytes - self.allocated_bytes - self.burst_used_bytes)

    @property
    def cores_available(self) -> int:
        """Percent of the card that no policy has set aside."""
        if self.exclusive or self.card.is_divided:
            return 0
        return max(0, 100 - sum(use.cores for use in self.holders))

    @property
    def schedulable_bytes(self) -> int:
        """Memory that the scheduler of Kubernetes may allocate, with what it has allocated."""
        if self.card.is_divided:
            return 0
        others = sum(
            holder.added_bytes if holder.is_scheduled else holder.quota_bytes
            for holder in self.holders
        )
        return max(0, self.allocatable_bytes - others)

    @property
    def schedulable_cores(self) -> int:
        """Percent of the card that the scheduler of Kubernetes may allocate, likewise."""
        others = [use for use in self.holders if not use.is_scheduled]
        if self.card.is_divided or any(use.whole for use in others):
            return 0
        return max(0, 100 - sum(use.cores for use in others))

    @property
    def exclusive(self) -> bool:
        """Whether one tenant, or claim, has the whole card."""
        return any(use.whole for use in self.holders)


def matches_card(name: str, card: Card) -> bool:
    """Whether `name` begins this card's UUID or is words of its model, in any case: `h200`."""
    return is_beginning(name, card.uuid) or name.casefold() in card.model.casefold()


LESS: Final = "request less"
MORE: Final = "request more"


@dataclass(frozen=True)
class Obstacle:
    """A reason why a card cannot be taken."""

    text: str  # the end of "card 0 ..."
    fix: str = ""  # the way to correct it; "": none
    key: str = ""  # the quota's key that it is about


_GIB: Final = 1 << 30
#: Tenants of a card that a refusal names.
MOST_NAMED: Final = 8


def available_text(capacity: CardCapacity) -> str:
    """Return `has 126 of 140 GiB available`."""
    total = format_size(capacity.card.memory_bytes)
    free = format_size(capacity.available_bytes)
    if free.rpartition(" ")[2] == total.rpartition(" ")[2]:
        free = free.rpartition(" ")[0]
    return f"has {free} of {total} available"


def capacity_text(capacity: CardCapacity) -> str:
    """Return `has 126 of 140 GiB available (train 4, serve 8, non-tenant 1.1 by pid 812 Xorg)`."""
    holders = [_holder_text(use) for use in capacity.holders]
    if len(holders) > MOST_NAMED:
        rest = sum(use.quota_bytes + use.burst_used_bytes for use in capacity.holders[MOST_NAMED:])
        holders = [*holders[:MOST_NAMED], f"{len(holders) - MOST_NAMED} more {_short(rest)}"]
    if capacity.non_tenant_bytes:
        holders.append(
            f"non-tenant {_short(capacity.non_tenant_bytes)}{_non_tenant_text(capacity)}"
        )
    if capacity.reserve_bytes:
        holders.append(f"reserve {_short(capacity.reserve_bytes)}")
    return available_text(capacity) + (f" ({', '.join(holders)})" if holders else "")


def _holder_text(use: AllocationUse) -> str:
    """Return `train 4`, or `train 4 and 2 burst` if it uses more than its quota.

    `and 2 above it` is what a quota that was made smaller has left.
    """
    has = f"{use.tenant} {_short(use.quota_bytes)}"
    if not use.burst_used_bytes:
        return has
    how = "burst" if use.burst_limit_bytes > use.quota_bytes else "above it"
    return f"{has} and {_short(use.burst_used_bytes)} {how}"


def _non_tenant_text(capacity: CardCapacity) -> str:
    if not capacity.non_tenants:
        return " until recently"
    largest = max(capacity.non_tenants, key=lambda process: process.bytes)
    others = len(capacity.non_tenants) - 1
    return f" by pid {largest.pid} {largest.name}" + (f" and {others} more" if others else "")


def cores_text(capacity: CardCapacity) -> str:
    """Return ` (train 30, serve 60)`: the tenants that have reserved cores of the card."""
    holders = [f"{use.tenant} {use.cores}" for use in capacity.holders if use.cores]
    return f" ({', '.join(holders[:MOST_NAMED])})" if holders else ""


def _short(size: int) -> str:
    """Return a size for a list whose unit is GiB: `4`, `1.1`, or with its own unit below that."""
    shown = format_size(size)
    return shown.removesuffix(" GiB") if size >= _GIB else shown
