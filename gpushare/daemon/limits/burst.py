# SPDX-License-Identifier: Apache-2.0
"""Burst: tenants with a `memory-limit` may use memory that is not allocated to others.

After each sample of the driver the current limits of each card are recomputed. Before memory is
allocated on a card, the limits shrink to what they will be after it, and only then is the card's
capacity checked: an allocated byte is never given as burst memory. A tenant that takes memory at
that very moment either sees the smaller limit, or is seen to use the memory: it publishes what it
takes before it reads its limit, and the daemon writes the limit before it reads what the tenant
takes. All of this is the decide thread's.

Burst memory is only memory that is neither allocated nor used. It cannot be taken back, and what
one tenant uses of it the others wait for indefinitely. It is therefore divided by levels, as water
fills vessels of different depth: the tenant with the least burst memory comes first, and two
tenants that want more than there is end at the same level. A tenant's part is kept for it while it
does not use it. A tenant above the level (it came first, or there was more then) keeps what it has
and gets nothing more.

A tenant may report a shortfall: the card is full before its quota is. Its process keeps the memory
reserved and asks the driver again for two seconds. Meanwhile the card gives no burst memory, and
the audit looks sooner. A report is believed as far as the tenant's own page and the driver's last
sample agree with it: with these bytes the tenant stays within its quota, and the card is about
full. The consequences fall on tenants that are over their quota, so a tenant gains nothing by a
false report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.limits import driver_limits
from gpushare.daemon.observed import Shortfall
from gpushare.daemon.placement.model import AllocationUse, CardCapacity
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord

#: Limits change in steps of this: cards give memory in units of it, and a limit that follows
#: every byte would be written at every look.
STEP_BYTES: Final = 2 << 20
_ROUNDS: Final = 32


@dataclass(frozen=True)
class BurstRange:
    """A tenant's part of one card; `burst_limit_bytes` is never less than `quota_bytes`."""

    quota_bytes: int  # the quota
    burst_limit_bytes: int  # the burst limit
    used_bytes: int

    @property
    def wanted_bytes(self) -> int:
        """The most burst memory that it may have."""
        return self.burst_limit_bytes - self.quota_bytes

    @property
    def burst_used_bytes(self) -> int:
        """The burst memory that it uses."""
        return max(0, min(self.used_bytes, self.burst_limit_bytes) - self.quota_bytes)

    @property
    def above_limit_bytes(self) -> int:
        """What it uses above all that it may have: its quota was larger once."""
        return max(0, self.used_bytes - self.burst_limit_bytes)


def burst_limits(capacity_bytes: int, parts: Sequence[BurstRange]) -> tuple[int, ...]:
    """Return what each of `parts` may use of a card that has `capacity_bytes` for tenants.

    Never less than the quota, nor more than the burst limit. What may be used and what is used are
    together no more than the capacity, unless quotas and use alone are more: then no tenant may use
    more above its quota than it does, and those that use the most of it less.
    """
    spare = capacity_bytes - sum(part.quota_bytes + part.above_limit_bytes for part in parts)
    borrowed = [part.burst_used_bytes for part in parts]
    if sum(borrowed) > spare:
        ranges = [(0, most) for most in borrowed]
    else:
        ranges = [(part.burst_used_bytes, part.wanted_bytes) for part in parts]
    level = _level(max(0, spare), ranges)
    return tuple(
        part.quota_bytes + _within(level, low, high)
        for part, (low, high) in zip(parts, ranges, strict=True)
    )


def _level(spare: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the highest level, in whole steps, at which `ranges` together take at most `spare`."""

    def fits(steps: int) -> bool:
        return sum(_within(steps * STEP_BYTES, low, high) for low, high in ranges) <= spare

    highest = max((high for _, high in ranges), default=0)
    return _last(fits, -(-highest // STEP_BYTES)) * STEP_BYTES


def _last(fits: Callable[[int], bool], most: int) -> int:
    """Return the last number of 0 to `most` that fits; those that do come first, 0 always does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _within(level: int, low: int, high: int) -> int:
    return max(low, min(level, high))


_WITHHELD_SECONDS: Final = 10.0


class BurstUpdater:
    """Recomputes the limits on request, one request at a time."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._waits = False

    def again(self) -> None:
        """Decide soon, on the decide thread; any thread may ask, and as often as it likes."""
        if self._waits or not has_burst_tenant(self._state):
            return
        self._waits = True
        self._state.decide.submit(self._decide)

    def again_when_due(self) -> None:
        """Decide soon if burst memory of a card was withheld, and no longer is."""
        if any(until <= time.monotonic() for until in self._state.withheld.values()):
            self.again()

    def _decide(self) -> None:
        self._waits = False
        update_burst_limits(self._state)


def has_burst_tenant(state: DaemonState) -> bool:
    """Whether any tenant may have burst memory."""
    return any(
        allocation.burst_limit_bytes > allocation.quota_bytes
        for record in state.ledger.entries.values()
        for allocation in record.allocations
    )


def update_burst_limits(state: DaemonState) -> None:
    """Set the current limit of every tenant from the unallocated memory of its cards.

    Unhealthy cards are left as they are. Nothing changes while the driver's figures are stale
    or the ledger's integrity is in question: the memory could belong to an unknown reservation.
    """
    if state.node.driver is None or state.observed.usage.stale or state.ledger.integrity.why:
        return
    now = time.monotonic()
    state.withheld = {uuid: until for uuid, until in state.withheld.items() if now < until}
    for capacity in state.accounts.capacities():
        if capacity.health != "ok" or capacity.card.uuid in state.withheld:
            continue
        limits = _limits(capacity, 0)
        for use in capacity.allocations:
            if limits[use.key] != use.limit_bytes:
                _write(use.key, capacity.card.uuid, limits[use.key], state)


def withhold_burst(uuid: str, state: DaemonState) -> None:
    """Give no more burst memory of a card for a while: a tenant of it has a shortfall.

    A tenant keeps the burst memory that it uses: its limit allowed it, and another tenant is over
    its quota.
    """
    state.withheld = {**state.withheld, uuid: time.monotonic() + _WITHHELD_SECONDS}
    for capacity in state.accounts.capacities():
        for use in capacity.allocations if capacity.card.uuid == uuid else ():
            least = max(use.quota_bytes, use.used_bytes)
            if least < use.limit_bytes:
                _write(use.key, uuid, least, state)


def reclaim_rounds() -> Iterator[None]:
    """Yield once for each call of reclaim_burst that an allocation may need; then NoRoom.

    Usually two are enough. With a tenant that claims to use a little more after each, the decide
    thread would go on until the others have no burst memory left.
    """
    for _ in range(_ROUNDS):
        yield
    raise NoRoom("a container keeps changing how much burst memory it uses; try again")


def reclaim_burst(
    wanted: Mapping[str, int], capacities: Sequence[CardCapacity], state: DaemonState
) -> bool:
    """Lower limits until `wanted` more bytes, by card uuid, can be allocated.

    True if a limit had to shrink for it: the capacities have to be read again, for a tenant may
    have taken what it still could. If none had to, the memory is allocated by these capacities, and
    no tenant of the cards may keep more than they count.
    """
    shrunk = False
    for capacity in capacities:
        more = wanted.get(capacity.card.uuid, 0)
        burst_bytes = sum(use.quota_bytes + use.burst_granted_bytes for use in capacity.holders)
        if more <= 0 or burst_bytes + more <= capacity.allocatable_bytes:
            continue
        limits = _limits(capacity, more)
        for use in capacity.allocations:
            if limits[use.key] < use.limit_bytes:
                _write(use.key, capacity.card.uuid, limits[use.key], state)
                shrunk = True
    if not shrunk:
        for capacity in capacities:
            if wanted.get(capacity.card.uuid, 0) > 0:
                _keep_counted(capacity, state)
    return shrunk


def _keep_counted(capacity: CardCapacity, state: DaemonState) -> None:
    """Let each tenant of a card keep what `capacity` counts, and no more (Pages.kept)."""
    for use in capacity.allocations:
        pages = state.tenants.pages.get(use.key)
        for number, allocation in enumerate(state.ledger.entries[use.key].allocations):
            if pages is not None and allocation.uuid == capacity.card.uuid:
                counted = max(use.used_bytes, use.limit_bytes)
                pages.kept[number] = min(counted, pages.kept.get(number, counted))


def _limits(capacity: CardCapacity, reserved_bytes: int) -> dict[str, int]:
    """Return what each tenant may use once `reserved_bytes` more of the card are allocated."""
    reserved_bytes += sum(one.quota_bytes for one in capacity.reservations)
    limits = burst_limits(
        capacity.allocatable_bytes - reserved_bytes, [_part(one) for one in capacity.allocations]
    )
    return {one.key: limit for one, limit in zip(capacity.allocations, limits, strict=True)}


def _part(use: AllocationUse) -> BurstRange:
    most = max(use.quota_bytes, use.burst_limit_bytes)
    return BurstRange(use.quota_bytes, most, use.used_bytes)


def _write(key: str, uuid: str, limit_bytes: int, state: DaemonState) -> None:
    record = state.ledger.entries[key]
    for number, allocation in enumerate(record.allocations):
        if allocation.uuid == uuid:
            driver_limits.change_limit(record, number, limit_bytes, state)


_LOG_AGAIN_NS: Final = 10 * 10**9


def handle_shortfall(key: str, card_number: int, size_bytes: int, state: DaemonState) -> bool:
    """Handle a tenant's report that the driver could not allocate `size_bytes`.

    Return False if the tenant's page or the driver's last sample contradicts the report.
    """
    record = state.ledger.entries.get(key)
    if record is None or not record.shared or not 0 <= card_number < len(record.allocations):
        return False
    if not _is_within_quota(record, card_number, size_bytes, state):
        return False
    uuid = record.allocations[card_number].uuid
    if not _is_full(uuid, size_bytes, state):
        state.sample_now.set()  # it reports again, and the card may have been filled just now
        return False
    # By the driver: the tenant's own page has these bytes reserved, now or a sample ago.
    used_bytes = state.observed.usage.driver_bytes(key, uuid)
    if size_bytes > record.allocations[card_number].quota_bytes - used_bytes:
        return False
    _note_shortfall(record, uuid, size_bytes, state)
    state.sample_now.set()
    withhold_burst(uuid, state)
    return True


def forget_shortfalls(key: str, state: DaemonState) -> None:
    """Forget the reports of a tenant that has ended."""
    kept = {place: one for place, one in state.observed.shortfalls.items() if place[0] != key}
    state.observed.shortfalls = MappingProxyType(kept)


def _note_shortfall(record: TenantRecord, uuid: str, size_bytes: int, state: DaemonState) -> None:
    place, now_ns = (record.key, uuid), time.monotonic_ns()
    before = state.observed.shortfalls.get(place)
    logged_ns = None if before is None else before.logged_ns
    if logged_ns is None or now_ns - logged_ns >= _LOG_AGAIN_NS:
        logged_ns = now_ns
        log(
            "memory-shortfall-reported",
            "warning",
            tenant=record.key,
            name=record.title,
            card=uuid,
            requested_bytes=size_bytes,
        )
    times = 1 if before is None else before.times + 1
    noted = Shortfall(size_bytes, time.time(), now_ns, times, logged_ns)
    state.observed.shortfalls = MappingProxyType({**state.observed.shortfalls, place: noted})


def _is_within_quota(record: TenantRecord, number: int, size: int, state: DaemonState) -> bool:
    """Whether the tenant is within its quota, by its page, which has `size` reserved."""
    pages = state.tenants.pages.get(record.key)
    if pages is None:
        return False
    used, _, _ = pages.use(number)
    return 0 < size <= used <= record.allocations[number].quota_bytes


def _is_full(uuid: str, size: int, state: DaemonState) -> bool:
    """Whether the driver's last figures have little more than `size` left of a card."""
    card = None if state.node.driver is None else state.node.driver.card(uuid)
    look = state.observed.last
    if card is None or look is None or uuid not in look.sample.uses:
        return False
    return card.memory_bytes - look.sample.taken_bytes(uuid) < size + card.little_bytes
