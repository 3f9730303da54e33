# SPDX-License-Identifier: Apache-2.0
"""What a tenant uses of the memory of one of its cards: the same for ps, why and the metrics.

Its parts are the memory that the tenant's processes recorded, orphaned memory, and memory that only
the driver reports. They add up to the usage that counts against the quota, whatever a tenant wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare import abi
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.pages.status_page import MemoryUse, ProcessClaim, TenantClaims
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord

#: The parts that a process records itself, in the order of the report.
KINDS: Final[Mapping[str, int]] = {
    "buffers": abi.KIND_BUFFER,
    "managed": abi.KIND_MANAGED,
    "pools": abi.KIND_POOL,
    "physical": abi.KIND_PHYSICAL,
    "arrays": abi.KIND_ARRAY,
    "graphs": abi.KIND_GRAPH,
    "modules": abi.KIND_MODULE,
    "context_limits": abi.KIND_CONTEXT_LIMIT,
    "external": abi.KIND_EXTERNAL,
    "contexts": abi.KIND_CONTEXT,
}
_OVERHEAD: Final = ("contexts", "modules", "unaccounted")


@dataclass(frozen=True)
class TenantMemory:
    """Bytes of one card. `kinds` are the parts by name, `limit_bytes` what it may use now.

    `expected_bytes` is what the account expects of the driver's figure; None: it has no account.
    """

    kinds: Mapping[str, int]
    limit_bytes: int
    expected_bytes: int | None = None

    @property
    def used_bytes(self) -> int:
        """What counts against the quota."""
        return sum(self.kinds.values())

    @property
    def overhead_bytes(self) -> int:
        """What of it no allocation of the tenant's requested; 0 without an account."""
        if self.expected_bytes is None:
            return 0
        return sum(self.kinds[name] for name in _OVERHEAD)


def memory_of(
    record: TenantRecord,
    number: int,
    claims: Iterable[ProcessClaim],
    account: TenantClaims | None,
    state: DaemonState,
) -> TenantMemory:
    """Return what a tenant uses of its card `number`; `account` is the sum of its `claims` there.

    An evicted tenant uses nothing. Of one without an account, only the driver's figure is known.
    """
    allocation, pages = record.allocations[number], state.tenants.pages.get(record.key)
    if record.is_off_card:
        return TenantMemory(_parts(), allocation.quota_bytes)
    if pages is None or account is None or number >= pages.grant.card_count:
        seen = state.observed.usage.driver_bytes(record.key, allocation.uuid)
        return TenantMemory({**_parts(), "unaccounted": seen}, allocation.quota_bytes)
    most = most_bytes(allocation, state.node.driver)
    kinds = card_parts(claims, number, account, most)
    kinds["unaccounted"] = pages.grant.overhead_bytes(number)
    expected = min(account.expected_bytes, most)
    return TenantMemory(kinds, pages.grant.limit_bytes(number), expected)


def most_bytes(allocation: CardAllocation, driver: LoadedDriver | None) -> int:
    """Return the most that a tenant may claim of a card: its memory, and host memory beyond it.

    Of a card that is gone, it is what is allocated of it.
    """
    card = None if driver is None else driver.card(allocation.uuid)
    most = allocation.burst_limit_bytes if card is None else card.memory_bytes
    return most + allocation.managed_bytes


def process_parts(held: MemoryUse) -> dict[str, int]:
    """Return what a process holds, by part.

    The parts add up to the total: the recorded bytes of a kind are capped by the bytes that remain,
    and buffers are the rest. The two are not read at the same moment, and the tenant may write
    anything.
    """
    found, rest = dict.fromkeys(KINDS, 0), held.held_bytes
    for name, kind in KINDS.items():
        if kind != abi.KIND_BUFFER:
            found[name] = min(held.kinds[kind], rest)
            rest -= found[name]
    found["buffers"] = rest
    return found


def card_parts(
    claims: Iterable[ProcessClaim], number: int, account: TenantClaims, most: int
) -> dict[str, int]:
    """Return what processes claim of card `number`, by part, and what is orphaned there.

    Managed memory that host memory is reserved for does not count. The rest is at most what the
    card has, which is `most` without that.
    """
    found = dict.fromkeys(KINDS, 0)
    for claim in claims:
        for name, size in process_parts(claim.held[number]).items():
            found[name] += size
    found["orphaned"] = account.orphaned_bytes
    found["managed"] = max(0, found["managed"] - account.spared_bytes)
    left = most - account.spared_bytes
    for name, size in found.items():
        found[name] = min(size, left)
        left -= found[name]
    return found


def _parts() -> dict[str, int]:
    return {**dict.fromkeys(KINDS, 0), "orphaned": 0, "unaccounted": 0}
