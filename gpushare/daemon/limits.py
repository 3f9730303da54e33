# SPDX-License-Identifier: Apache-2.0
"""Memory limits: burst memory, and the limits that the driver itself holds; the decide thread's.

Tenants with a `memory-limit` may use memory that is not allocated to others. After each
sample of the driver the current limits of each card are recomputed. Before memory is allocated on a
card, the limits shrink to what they will be after it, and only then is the card's capacity checked:
an allocated byte is never given as burst memory. A tenant that takes memory at that very moment
either sees the smaller limit, or is seen to use the memory: it publishes what it takes before it
reads its limit, and the daemon writes the limit before it reads what the tenant takes.

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
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpushare.daemon.cards.driver_client import NO_LIMITS, DriverError, DriverLimits
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.node import LoadedDriver, Node
from gpushare.daemon.observed import CardUsage, Observations, Shortfall
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.model import AllocationUse, CardCapacity
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.quota.request import QuotaRequest
from gpushare.quota.size import parse_size
from gpushare.settings import MPS

# --- the account of each card: its capacity, allocations, reservations, and the use of tenants ---


class CardAccounts:
    """The accounts of all cards, by the ledger, the last sample, and what tenants claim."""

    def __init__(
        self, node: Node, ledger: Ledger, observed: Observations, tenants: Tenants
    ) -> None:
        self.node, self.ledger, self.observed = node, ledger, observed
        self.tenants = tenants

    def capacities(self, without: str = "") -> tuple[CardCapacity, ...]:
        """Return each card with its allocations, and what is reserved but for file `without`."""
        driver, view = self.node.loaded(), self.observed.usage
        capacities = []
        uses: dict[str, list[AllocationUse]] = {card.uuid: [] for card in driver.cards}
        for record in self.ledger.entries.values():
            for number, allocation in enumerate(() if record.is_off_card else record.allocations):
                if allocation.uuid in uses:
                    uses[allocation.uuid].append(self._use(record, number))
        for card in driver.cards:
            usage = view.cards.get(card.uuid, CardUsage())
            rule = self.node.rule_of(card)
            overrides = self.node.card_overrides.of(card.uuid)
            policy, backend = self.node.policy_of(card.uuid), self.node.backend_of(card)
            capacities.append(
                CardCapacity(
                    card,
                    allocations=tuple(uses[card.uuid]),
                    non_tenants=usage.non_tenants,
                    non_tenant_bytes=usage.non_tenant_bytes,
                    reserve_bytes=self.node.config.reserve_bytes,
                    context_bytes=driver.contexts.sizes.get(card.model, 0),
                    health=usage.health,
                    utilization=usage.utilization,
                    unattributed_bytes=self.observed.unattributed.get(card.uuid, 0),
                    policy=policy,
                    rule=rule,
                    compute_mode=usage.compute_mode,
                    cordoned=overrides.get("cordoned", rule.cordoned_by),
                    reservations=tuple(
                        use if self._has_claims else replace(use, is_scheduled=False)
                        for use in self.ledger.reserved_beside(card.uuid, policy, without)
                    ),
                    backend=backend,
                    backend_fault=self.node.mps.fault_of(card.uuid) if backend == MPS else "",
                )
            )
        return tuple(capacities)

    def _use(self, record: TenantRecord, number: int) -> AllocationUse:
        allocation = record.allocations[number]
        used_bytes, limit_bytes = self.use_of(record, number)
        grant = self.node.mps.grant_of(record.key) if record.isolation == MPS else None
        return AllocationUse(
            record.title,
            allocation.quota_bytes,
            record.reserved_cores(allocation, self.node.policy_of(allocation.uuid)),
            allocation.whole,
            key=record.key,
            used_bytes=used_bytes,
            limit_bytes=limit_bytes,
            burst_limit_bytes=allocation.burst_limit_bytes,
            is_scheduled=record.is_scheduled and bool(record.claim) == self._has_claims,
            added_bytes=_added_bytes(record, allocation),
            backend=MPS if record.isolation == MPS else "",
            uid=None if grant is None else grant.uid,
        )

    @property
    def _has_claims(self) -> bool:
        """Whether claims, and not the device plugin, allocate memory on this node."""
        return self.node.config.kubernetes_mode == "dra"

    def use_of(self, record: TenantRecord, number: int) -> tuple[int, int]:
        """Return what a tenant uses of a card and what it may use, as far as it can be believed.

        Never less than the driver's figure in the last sample, whatever the tenant claims. The
        claims of a tenant that stays within its quota, and never had a higher limit, are not read
        again: its quota is allocated anyway. A tenant that does not run yet uses nothing.
        """
        allocation, pages = record.allocations[number], self.tenants.pages.get(record.key)
        place = record.key, allocation.uuid
        if allocation.whole:
            return allocation.quota_bytes, allocation.quota_bytes
        measured = max(self.observed.usage.driver_bytes[place], record.evicted_bytes(number))
        if pages is None:
            # Its limit cannot be lowered: burst memory that it may have counts as used.
            is_bound = record.state == "bound"
            most = allocation.burst_limit_bytes if is_bound else allocation.quota_bytes
            return max(measured, most), most
        known = self.observed.usage.used.get(place, 0 if record.state == "reserved" else None)
        most = max(allocation.burst_limit_bytes, pages.grant.most[number])
        if known is not None and max(known, measured) <= allocation.quota_bytes == most:
            return max(known, measured), allocation.quota_bytes
        claimed, limit, most = pages.use(number)
        # A tenant that claims more than it can have would keep others off the card.
        return max(measured, min(claimed, most)), limit


def _added_bytes(record: TenantRecord, allocation: CardAllocation) -> int:
    """Return what an operator has added to the memory that a container requested of a card."""
    if record.claim or not record.is_set("memory") or "memory" not in record.requested:
        return 0
    return max(0, allocation.quota_bytes - parse_size(record.requested["memory"]["value"]))


_WITHHELD_SECONDS: Final = 10.0
_LOG_AGAIN_NS: Final = 10 * 10**9
_NO_SHORTFALL: Final = Shortfall(0, 0.0, 0, times=0)
#: Limits change in steps of this: cards give memory in units of it, and a limit that follows
#: every byte would be written at every look.
STEP_BYTES: Final = 2 << 20
_ROUNDS: Final = 32
# A driver may round to what it allocates in: 2 MiB on every card since Pascal (cuMemGetAllocation-
# Granularity), and no limit is meant to the byte.
_ROUNDING_BYTES: Final = 2 << 20


def burst_limits(capacity_bytes: int, uses: Sequence[AllocationUse]) -> tuple[int, ...]:
    """Return how much each of `uses` may use of a card that has `capacity_bytes` for tenants.

    Never less than the quota, nor more than the burst limit. What may be used and what is used are
    together no more than the capacity, unless quotas and use alone are more: then no tenant may use
    more above its quota than it does, and those that use the most of it less.
    """
    wanted = [max(0, use.burst_limit_bytes - use.quota_bytes) for use in uses]
    borrowed = [min(use.burst_used_bytes, most) for use, most in zip(uses, wanted, strict=True)]
    # Use above the burst limit, of a tenant whose quota was larger once, is nobody's to give.
    kept = sum(use.quota_bytes + use.burst_used_bytes for use in uses) - sum(borrowed)
    spare = capacity_bytes - kept
    if sum(borrowed) > spare:
        ranges = [(0, most) for most in borrowed]
    else:
        ranges = list(zip(borrowed, wanted, strict=True))
    level = _level(max(0, spare), ranges)
    return tuple(
        use.quota_bytes + _within(level, low, high)
        for use, (low, high) in zip(uses, ranges, strict=True)
    )


def _level(spare: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the highest level, in whole steps, at which `ranges` together take at most `spare`."""

    def is_too_high(steps: int) -> bool:
        return sum(_within(steps * STEP_BYTES, low, high) for low, high in ranges) > spare

    highest = max((high for _, high in ranges), default=0)
    steps = range(1, -(-highest // STEP_BYTES) + 1)
    return bisect_left(steps, True, key=is_too_high) * STEP_BYTES


def _within(level: int, low: int, high: int) -> int:
    return max(low, min(level, high))


class MemoryLimits:
    """The current limits of all tenants: what each may use of its cards now."""

    def __init__(self, accounts: CardAccounts, decide: Worker) -> None:
        self._accounts, self._decide = accounts, decide
        self._node, self._ledger = accounts.node, accounts.ledger
        self._observed, self._tenants = accounts.observed, accounts.tenants
        # By card, until when it gives no more burst memory, in monotonic seconds.
        self.withheld: dict[str, float] = {}
        #: Clients of an MPS server that the driver limits too; the decide thread's.
        self.clients: set[str] = set()
        self._left: set[str] = set()  # tenants whose limits in the driver may differ from the pages

    def update_soon(self) -> None:
        """Update soon, on the decide thread; any thread may ask, and as often as it likes."""
        if self._has_bursts():
            self._decide.submit_once(self.update)

    def _has_bursts(self) -> bool:
        """Whether a tenant may use more than its quota; else its quota is the limit of each."""
        records = self._ledger.entries.values()
        parts = (part for record in records for part in record.allocations)
        return any(part.burst_limit_bytes > part.quota_bytes for part in parts)

    def update_when_due(self) -> None:
        """Update soon if burst memory of a card was withheld, and no longer is."""
        if any(until <= time.monotonic() for until in self.withheld.values()):
            self.update_soon()

    def update(self) -> None:
        """Set the current limit of every tenant from the unallocated memory of its cards.

        Unhealthy cards are left as they are. Nothing changes while the driver's figures are stale
        or the ledger's integrity is in question: the memory could belong to an unknown reservation.
        """
        if self._node.driver is None or self._observed.usage.stale or self._ledger.integrity.why:
            return
        if not self._has_bursts():
            return
        now = time.monotonic()
        self.withheld = {uuid: until for uuid, until in self.withheld.items() if now < until}
        for capacity in self._accounts.capacities():
            if capacity.health != "ok" or capacity.card.uuid in self.withheld:
                continue
            self._write(capacity, _limits(capacity, 0))

    def withhold(self, uuid: str) -> None:
        """Give no more burst memory of a card for a while: a tenant of it has a shortfall.

        A tenant keeps the burst memory that it uses: its limit allowed it, and another tenant is
        over its quota.
        """
        self.withheld = {**self.withheld, uuid: time.monotonic() + _WITHHELD_SECONDS}
        for capacity in self._accounts.capacities():
            if capacity.card.uuid == uuid:
                uses = capacity.allocations
                used = {use.key: max(use.quota_bytes, use.used_bytes) for use in uses}
                self._lower(capacity, used)

    def reclaim(self, wanted: Mapping[str, int], capacities: Sequence[CardCapacity]) -> bool:
        """Lower limits until `wanted` more bytes, by card uuid, can be allocated.

        True if a limit had to shrink for it: the capacities have to be read again, for a tenant may
        have taken what it still could. If none had to, the memory is allocated by these capacities,
        and no tenant of the cards may keep more than they count.
        """
        shrunk = False
        for capacity in capacities:
            more = wanted.get(capacity.card.uuid, 0)
            burst_bytes = sum(use.quota_bytes + use.burst_granted_bytes for use in capacity.holders)
            if more <= 0 or burst_bytes + more <= capacity.allocatable_bytes:
                continue
            shrunk |= self._lower(capacity, _limits(capacity, more))
        if not shrunk:
            for capacity in capacities:
                if wanted.get(capacity.card.uuid, 0) > 0:
                    self._keep_counted(capacity)
        return shrunk

    def _lower(self, capacity: CardCapacity, limits: Mapping[str, int]) -> bool:
        """Lower the limits of a card's tenants that are above `limits`; whether there was one."""
        uses = capacity.allocations
        least = {use.key: min(use.limit_bytes, limits[use.key]) for use in uses}
        return self._write(capacity, least)

    def _write(self, capacity: CardCapacity, limits: Mapping[str, int]) -> bool:
        """Have the card's tenants know these limits; whether one of them had another."""
        changed = [use.key for use in capacity.allocations if limits[use.key] != use.limit_bytes]
        for key in changed:
            record = self._ledger.entries[key]
            for number, allocation in enumerate(record.allocations):
                if allocation.uuid == capacity.card.uuid:
                    self.change(record, number, limits[key])
        return bool(changed)

    def change(self, record: TenantRecord, number: int, limit_bytes: int) -> None:
        """Let a tenant use `limit_bytes` of its card `number`, in its page and in the driver.

        Neither ever allows what the other still refuses for long: the driver is told first of more,
        and the page of less. OSError where the ledger cannot note that the driver does not hold it
        any more.
        """
        pages = self._tenants.pages.get(record.key)
        if pages is None:
            return
        memory_bytes = record.allocations[number].quota_bytes
        before_bytes = pages.grant.limit_bytes(number)
        if limit_bytes > before_bytes:
            self._follow(record, number, limit_bytes)
            pages.write_limit(number, memory_bytes, limit_bytes)
        else:
            # Noted before the limit falls, for the audit reads them in the opposite order.
            kept = pages.kept[number] = max(before_bytes, pages.kept.get(number, 0))
            pages.write_limit(number, memory_bytes, limit_bytes)
            # Read after it has fallen: a process publishes what it takes before it reads the limit.
            used_bytes, _ = self._accounts.use_of(record, number)
            pages.kept[number] = min(kept, used_bytes)
            self._follow(record, number, limit_bytes)

    def _follow(self, record: TenantRecord, number: int, limit_bytes: int) -> None:
        """Have the driver hold the new limit too, where it holds this tenant's."""
        if self._node.driver is None or not self.is_held(record):
            return
        directory = _directory(record)
        if directory is None:
            return
        if not self._impose(record, {number: limit_bytes}, directory, self._node.driver):
            self._ledger.change(record.key, isolation=effective_isolation(record))

    # The driver's own limits are on the container's cgroup, for each card: soft is the quota, hard
    # is what the tenant may use now (NVML: nvmlDeviceSetMemoryLimits_v1, drivers from 615 on). They
    # hold for every process of the cgroup, also for one that bypasses the library, and end with the
    # cgroup. They have to read back unchanged.

    def hold(self, record: TenantRecord) -> TenantRecord:
        """Have the driver limit a bound tenant; its record says what holds its quota."""
        isolation = self.set_in_driver(record)
        if isolation == record.isolation:
            return record
        return self._ledger.change(record.key, isolation=isolation)

    def set_in_driver(self, record: TenantRecord) -> str:
        """Set the limits of a bound tenant, and return what holds its quota from now on.

        An isolation other than the interposer's or the driver's stays.
        """
        otherwise, driver = effective_isolation(record), self._node.driver
        if not record.shared or record.isolation not in {DRIVER, INTERPOSER, AUDITED, MPS}:
            return otherwise
        if driver is None and record.isolation == DRIVER:
            self._left.add(record.key)  # by an earlier daemon: they hold on
            return DRIVER
        directory = _directory(record)
        if driver is None or directory is None or not driver.nvml.has_limits:
            return otherwise
        cards = (driver.card(allocation.uuid) for allocation in record.allocations)
        is_divided = any(card is not None and card.instance for card in cards)
        if is_divided or requested_backend(record) == INTERPOSER:
            return otherwise  # the driver has no limits for a part of a card
        pages = self._tenants.pages.get(record.key)
        limits = {
            number: allocation.quota_bytes if pages is None else pages.grant.limit_bytes(number)
            for number, allocation in enumerate(record.allocations)
        }
        if not self._impose(record, limits, directory, driver):
            return otherwise
        self._left.discard(record.key)
        if record.isolation == MPS:  # it stays what it is, and the driver holds it too
            self.clients.add(record.key)
            return MPS
        return DRIVER

    def retry(self) -> None:
        """Set again the limits of the driver that differ, or may differ, from the pages."""
        for key in list(self._left) if self._node.driver is not None else ():
            record = self._ledger.entries.get(key)
            if record is None or record.state != "bound":
                self._left.discard(key)
            else:
                self.hold(record)

    def set_all_again(self) -> None:
        """Set all limits of the driver again: a replaced driver knows none of them."""
        entries = self._ledger.entries.items()
        self._left.update(key for key, record in entries if self.is_held(record))
        self.retry()

    def is_held(self, record: TenantRecord) -> bool:
        """Whether the driver's limits hold a tenant's quota, alone or beside an MPS server's."""
        return record.isolation == DRIVER or record.key in self.clients

    def clear(self, record: TenantRecord) -> None:
        """Clear the limits of a tenant that is released, where its cgroup is still there."""
        directory, driver = _directory(record), self._node.driver
        if driver and directory and self.is_held(record) and directory.is_dir():
            self._clear(record, directory, driver)
        self.clients.discard(record.key)

    def _impose(
        self,
        record: TenantRecord,
        limits: Mapping[int, int],
        directory: Path,
        driver: LoadedDriver,
    ) -> bool:
        """Set limits by card number; False: the driver takes them not, and has none now."""
        try:
            for number, limit_bytes in limits.items():
                part = record.allocations[number]
                # The driver counts managed memory while it is in system memory (MPS manual 615,
                # "Memory Partitioning"), and what is beyond the quota may be there.
                wanted = DriverLimits(part.quota_bytes, limit_bytes + part.managed_bytes)
                driver.nvml.set_limits(part.uuid, directory, wanted)
                reported = driver.nvml.limits(part.uuid, directory)
                pairs = zip(astuple(reported), astuple(wanted), strict=True)
                if any(abs(one - other) >= _ROUNDING_BYTES for one, other in pairs):
                    raise DriverError(  # noqa: TRY301 - as if the driver had refused them
                        f"its limit for {directory} was set to {wanted}, but reads {reported}"
                    )
        except DriverError as error:
            log("driver-limit-set-failed", "warning", **record.named, reason=str(error))
            self.clients.discard(record.key)
            self._clear(record, directory, driver)
            return False
        return True

    def _clear(self, record: TenantRecord, directory: Path, driver: LoadedDriver) -> None:
        """Clear the limits, now or, where the driver does not do it, as soon as it does."""
        self._left.discard(record.key)
        for allocation in record.allocations:
            try:
                driver.nvml.set_limits(allocation.uuid, directory, NO_LIMITS)
            except DriverError as error:
                self._left.add(record.key)
                place = {"tenant": record.key, "card": allocation.uuid}
                log("driver-limit-removal-failed", "warning", **place, reason=str(error))

    def handle_shortfall(self, key: str, card_number: int, size_bytes: int) -> bool:
        """Handle a tenant's report that the driver could not allocate `size_bytes`.

        Return False if the tenant's page or the driver's last sample contradicts the report.
        """
        record = self._ledger.entries.get(key)
        if record is None or not record.shared or not 0 <= card_number < len(record.allocations):
            return False
        if not self._is_within_quota(record, card_number, size_bytes):
            return False
        allocation = record.allocations[card_number]
        uuid = allocation.uuid
        if not self._is_full(uuid, size_bytes):
            # It reports again, and the card may have been filled just now.
            self._observed.sample_now.set()
            return False
        # By the driver: the tenant's own page has these bytes reserved, now or a sample ago.
        used_bytes = self._observed.usage.driver_bytes[key, uuid]
        if size_bytes > allocation.quota_bytes - used_bytes:
            return False
        self._note_shortfall(record, uuid, size_bytes)
        self._observed.sample_now.set()
        self.withhold(uuid)
        return True

    def forget_shortfalls(self, key: str) -> None:
        """Forget the reports of a tenant that has ended."""
        shortfalls = self._observed.shortfalls.items()
        kept = {place: shortfall for place, shortfall in shortfalls if place[0] != key}
        self._observed.shortfalls = MappingProxyType(kept)

    def _note_shortfall(self, record: TenantRecord, uuid: str, size_bytes: int) -> None:
        place, now_ns = (record.key, uuid), time.monotonic_ns()
        before = self._observed.shortfalls.get(place, _NO_SHORTFALL)
        logged_ns = before.logged_ns
        if logged_ns is None or now_ns - logged_ns >= _LOG_AGAIN_NS:
            logged_ns = now_ns
            figures = {"card": uuid, "requested_bytes": size_bytes}
            log("memory-shortfall-reported", "warning", **record.named, **figures)
        noted = Shortfall(size_bytes, time.time(), now_ns, before.times + 1, logged_ns)
        self._observed.shortfalls = MappingProxyType({**self._observed.shortfalls, place: noted})

    def _is_within_quota(self, record: TenantRecord, number: int, size: int) -> bool:
        """Whether the tenant is within its quota, by its page, which has `size` reserved."""
        pages = self._tenants.pages.get(record.key)
        if pages is None:
            return False
        used, _, _ = pages.use(number)
        return 0 < size <= used <= record.allocations[number].quota_bytes

    def _is_full(self, uuid: str, size: int) -> bool:
        """Whether the driver's last figures have little more than `size` left of a card."""
        card, look = self._node.card(uuid), self._observed.last
        free = None if card is None or look is None else look.sample.free_bytes(card)
        return card is not None and free is not None and free < size + card.little_bytes

    def _keep_counted(self, capacity: CardCapacity) -> None:
        """Let each tenant of a card keep what `capacity` counts, and no more (Pages.kept)."""
        for use in capacity.allocations:
            pages = self._tenants.pages.get(use.key)
            for number, allocation in enumerate(self._ledger.entries[use.key].allocations):
                if pages is not None and allocation.uuid == capacity.card.uuid:
                    counted = max(use.used_bytes, use.limit_bytes)
                    pages.kept[number] = min(counted, pages.kept.get(number, counted))


def reclaim_rounds() -> Iterator[None]:
    """Yield once for each call of reclaim_burst that an allocation may need; then NoRoom.

    Usually two are enough. With a tenant that claims to use a little more after each, the decide
    thread would go on until the others have no burst memory left.
    """
    for _ in range(_ROUNDS):
        yield
    raise NoRoom("a container keeps changing how much burst memory it uses; try again")


def _limits(capacity: CardCapacity, reserved_bytes: int) -> dict[str, int]:
    """Return what each tenant may use once `reserved_bytes` more of the card are allocated."""
    reserved_bytes += sum(use.quota_bytes for use in capacity.reservations)
    limits = burst_limits(capacity.allocatable_bytes - reserved_bytes, capacity.allocations)
    return {use.key: limit for use, limit in zip(capacity.allocations, limits, strict=True)}


# Which backend holds a tenant's quota. Where one below the interposer library does not hold it, the
# library does, with the audit of the driver's figures.

DRIVER: Final = "driver"  # the driver's own limits on the cgroup, behind the interposer library
INTERPOSER: Final = "interposer"  # libhook/
AUDITED: Final = "audited"  # the same, for a tenant with capabilities that bypass the library
EXCLUSIVE: Final = "exclusive"  # the whole card belongs to one tenant
MIG: Final = "mig"

_INSTEAD: Final = "remove it: the interposer library then enforces the quota"
UNSUPPORTED: Final[Mapping[str, tuple[str, str]]] = {
    EXCLUSIVE: (
        "applies to a whole card, and this request is for a share",
        "for a whole card, remove memory and cores; for a share, remove backend",
    ),
}


def check_supported(
    quota: QuotaRequest, driver: LoadedDriver, *, whole: bool, count: int | None = 1
) -> None:
    """Raise QuotaError for a backend that cannot hold `quota` here; `count` None is all cards."""
    requested = quota.backend
    if requested is None or (whole and requested == EXCLUSIVE):
        return
    if requested == DRIVER and not driver.nvml.has_limits:
        rule = f"needs memory limits, which driver {driver.nvml.driver_version} does not have"
        raise quota.refuse("backend", rule, _INSTEAD)
    if requested == MPS and whole:
        rule = "is for shares, and a whole card is requested"
        raise quota.refuse("backend", rule, "add memory or cores")
    if requested == MPS and count != 1:
        rule = "is for one card: a program reaches only one MPS server"
        raise quota.refuse("backend", rule, "request one card, or remove backend")
    if requested == MIG and not any(card.instance for card in driver.cards):
        rule = "needs a MIG instance, and no card of this node has one"
        raise quota.refuse("backend", rule, _INSTEAD)
    if requested in UNSUPPORTED:
        raise quota.refuse("backend", *UNSUPPORTED[requested])


def best_isolation(driver: LoadedDriver | None) -> str:
    """Return what can enforce the memory quota of a share on this node; "" without a driver."""
    if driver is None:
        return ""
    return DRIVER if driver.nvml.has_limits else INTERPOSER


def effective_isolation(record: TenantRecord) -> str:
    """Return what holds a shared tenant's quota where nothing below the interposer does.

    What it has that goes past the interposer only the audit sees.
    """
    if not record.shared or record.isolation not in {DRIVER, INTERPOSER, AUDITED}:
        return record.isolation
    return AUDITED if record.uninterposed else INTERPOSER


def requested_backend(record: TenantRecord) -> str:
    """Return the backend that a tenant requested, "" for none."""
    return record.quota["backend"]["value"] if "backend" in record.quota else ""


def _directory(record: TenantRecord) -> Path | None:
    """Return the directory of the tenant's cgroup; None where it has none of its own."""
    return Cgroups.mounted().directory(record.cgroup) if record.cgroup else None
