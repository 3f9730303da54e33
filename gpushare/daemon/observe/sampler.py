# SPDX-License-Identifier: Apache-2.0
"""Samples of the driver beside the tenants' claims: overhead, utilization, non-tenant use.

Every look reads the tenants' accounts, then the driver, then the accounts again. What it has above
the larger of the two accounts is overhead: what contexts and modules take beyond their price, what
the driver keeps, what no account knows of. The three reads are not one moment, so a single look may
be wrong by what was allocated between them; the least of the last few is published, and a race
never refuses what there is room for.

A process belongs to the tenant of its cgroup, or of its ancestors if the tenant has none of its
own. A PID whose process has ended belongs to the tenant that it belonged to
(identity/pid_resolver.py). A process of no tenant is a non-tenant once it was in two samples, and
never while it is one that a tenant, or the daemon, has just left behind.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverGeneration,
    DriverSample,
    Health,
    InvalidSample,
    ProcessUse,
)
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.pid_resolver import ListedPid, PidResolver, ProcessOwners
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.observe.non_tenant import NonTenantUse
from gpushare.daemon.observed import AuditInput, CardUsage, Observations, TenantOnCard, UsageView
from gpushare.daemon.pages.status_page import TenantClaims
from gpushare.daemon.pages.tenants import Accounts, Pages, Tenants
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord

_REAP_SECONDS: Final = 1.0
_UNSETTLED: Final = "it has just changed and is being sampled again"


class UsageSampler:
    """Samples the driver into `observed.usage` and `observed.last`; the truth thread's."""

    def __init__(  # noqa: PLR0913 - several use what is found
        self,
        driver: Nvml,
        ledger: Ledger,
        tenants: Tenants,
        observed: Observations,
        *,
        holds: Callable[[int], bool] = lambda _: True,
        changed: Callable[[DriverGeneration], None] = lambda _: None,
    ) -> None:
        self.observed = observed
        self.resolver = PidResolver(holds)
        self.health = Health()
        # Called where the driver or its cards are others than before; `settle` is the answer.
        self._changed = changed
        self._driver = driver
        self._ledger = ledger
        self._tenants = tenants
        self._cards = {card.uuid: card for card in driver.cards()}
        self._non_tenants = NonTenantUse()
        self._overheads: dict[tuple[str, int], Overhead] = {}
        self._generation: DriverGeneration | None = None
        self._unsettled: frozenset[str] = frozenset()  # cards that are not understood yet
        self._fault = ""  # of the driver: what was logged last
        self._first = True
        self._dead = DeadRecords()
        self._reaped = 0.0

    def excuse(self, pid: int) -> None:
        """Never count `pid`, a program of the daemon's own, as a non-tenant."""
        self._non_tenants.excuse(pid, time.monotonic())

    def settle(self, generation: DriverGeneration) -> None:
        """Take the cards of `generation` for understood; the next look may judge them. Any thread.

        A later generation is reported by itself.
        """
        if generation == self._generation:
            self._unsettled = frozenset()

    def peek(self) -> DriverSample | None:
        """Ask the driver alone, in brief; None where it does not answer, which a look says."""
        try:
            sample = self._driver.sample(brief=True)
        except DriverError:
            return None
        self._note_health(sample)
        return sample

    def _note_health(self, sample: DriverSample) -> None:
        self.health.note(sample, self._cards)
        self.observed.xids = self.health.xids

    def look(self) -> None:
        """Look once, and write what was found into the tenants' grant pages.

        An error makes the usage stale and does not end the sampling: nothing else samples.
        """
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - see above
            if not self.observed.usage.stale:
                log("driver-sample-failed", "error", traceback=traceback.format_exc())
            self._go_stale(
                f"gpushared could not sample the driver ({type(error).__name__}); see its log"
            )

    def _look(self) -> None:
        now = time.monotonic()
        records = self._ledger.entries
        pages = dict(self._tenants.pages)
        if now - self._reaped >= _REAP_SECONDS:
            self._reaped = now
            self._dead.look(records, pages)
        before = {key: own.accounts() for key, own in pages.items()}
        try:
            sample = self._driver.sample()
        except InvalidSample as error:
            if self._fault != "implausible":
                log("driver-sample-rejected", "error", reason=str(error))
            self._fault = "implausible"
            self._go_stale(str(error))
            return
        except DriverError as error:
            if self._fault != "silent":
                log("driver-timed-out", "error", reason=str(error))
            self._fault = "silent"
            self._go_stale(str(error))
            return
        if self._fault:
            self._fault = ""
            log("driver-recovered", "info")
        self._note_health(sample)
        if self._is_other(sample.generation):
            return
        after = {key: own.accounts() for key, own in pages.items()}
        pids = {use.pid for uses in sample.uses.values() for use in uses}
        listed = self.resolver.look(pids, ProcessOwners(records).all_of, records)
        sightings = {
            uuid: tuple((listed.get(use.pid), use) for use in uses)
            for uuid, uses in sample.uses.items()
        }
        uses = _by_owner(sightings, records)
        used: dict[TenantOnCard, int] = {}
        for key, own in pages.items():
            if key in records and records[key].eviction is None:  # else its claims are of before
                used |= self._measure(records[key], own, uses, before[key], after[key])
        self._overheads = {
            slot: overhead for slot, overhead in self._overheads.items() if slot[0] in pages
        }
        self._publish(now, sample, uses, used)
        judged = {uuid: seen for uuid, seen in sightings.items() if uuid not in self._unsettled}
        self.observed.last = AuditInput(
            records,
            pages,
            sample,
            judged,
            {key: read.claims for key, read in before.items()},
            {key: read.claims for key, read in after.items()},
            frozenset(
                key for key in pages if not (before[key].is_current and after[key].is_current)
            ),
        )

    def _is_other(self, now: DriverGeneration) -> bool:
        """Whether the driver or its cards have changed: then judge no tenant."""
        before, self._generation = self._generation, now
        if before is None or before == now:
            return False
        self._cards = {card.uuid: card for card in self._driver.cards()}
        changed = now.changed_cards(before)
        self._unsettled |= changed
        log(
            "driver-cards-changed",
            "warning",
            driver=now.driver,
            before=before.driver,
            cards=sorted(changed),
            loads=now.loads,
        )
        change = f"card {', '.join(sorted(changed))}" if changed else "its library was reloaded"
        self._go_stale(f"the driver has changed since the last sample ({change})")
        self._changed(now)
        return True

    def _measure(
        self, record: TenantRecord, pages: Pages, found: _Uses, before: Accounts, after: Accounts
    ) -> dict[TenantOnCard, int]:
        """Write what the driver has of a tenant into its page; return what it uses in all."""
        used: dict[TenantOnCard, int] = {}
        for number, allocation in enumerate(record.allocations):
            uses = found.owned.get((record.key, allocation.uuid), [])
            if number >= len(after.sums) or number >= len(before.sums):
                continue
            overhead = self._overheads.get((record.key, number))
            if overhead is None:
                overhead = Overhead(pages.grant.overhead_bytes(number))
                self._overheads[record.key, number] = overhead
            if allocation.uuid in found.others and all(use.bytes is not None for use in uses):
                driver_bytes = sum(use.bytes or 0 for use in uses)
                sums = before.sums[number], after.sums[number]
                measured = overhead.observe(driver_bytes, *sums)
            else:  # no figure is not a figure of 0
                measured = pages.grant.overhead_bytes(number)
            share = min(100, sum(use.utilization or 0 for use in uses))
            pages.grant.set_measured(number, measured, share)
            pages.grant.beat()
            used[record.key, allocation.uuid] = after.sums[number].used_bytes(measured)
        return used

    def _publish(
        self, now: float, sample: DriverSample, found: _Uses, used: Mapping[TenantOnCard, int]
    ) -> None:
        cards: dict[str, CardUsage] = {}
        processes: dict[str, list[tuple[str, ProcessUse]]] = {}
        utilization: dict[TenantOnCard, int] = {}
        for (key, uuid), uses in found.owned.items():
            processes.setdefault(key, []).extend((uuid, use) for use in uses)
            percents = [use.utilization for use in uses if use.utilization is not None]
            if percents:
                utilization[key, uuid] = min(100, sum(percents))
            for use in uses:
                self._non_tenants.excuse(use.pid, now)
        health = dict(self.health.observe(sample, self._cards))
        health |= dict.fromkeys(self._unsettled & health.keys(), _UNSETTLED)
        for uuid in self._cards:
            if uuid not in found.others:
                known = self.observed.usage.cards.get(uuid, CardUsage())
                cards[uuid] = replace(known, health=health[uuid], utilization=None)
                continue
            usage = self._non_tenants.observe(
                now,
                uuid,
                found.others[uuid],
                found.strays[uuid],
                first=self._first,
                used_bytes=sample.used.get(uuid),
            )
            cards[uuid] = replace(
                usage,
                health=health[uuid],
                utilization=sample.utilization.get(uuid),
                compute_mode=sample.compute_modes.get(uuid, ""),
            )
        self._first = False
        self.observed.usage = UsageView(
            MappingProxyType(cards),
            MappingProxyType({key: tuple(uses) for key, uses in processes.items()}),
            MappingProxyType(utilization),
            MappingProxyType(dict(used)),
        )

    def _go_stale(self, why: str) -> None:
        """Keep what was known, marked as stale; cards that have changed are not allocated."""
        self.observed.last = None
        view = self.observed.usage
        cards = {
            uuid: replace(known, health=_UNSETTLED) if uuid in self._unsettled else known
            for uuid, known in view.cards.items()
        }
        self.observed.usage = replace(view, cards=MappingProxyType(cards), stale=why)


class _Uses(NamedTuple):
    """The uses of one sample."""

    owned: Mapping[TenantOnCard, list[ProcessUse]]
    others: Mapping[str, list[ProcessUse]]  # by card, of no tenant
    strays: Mapping[str, list[ProcessUse]]


def _by_owner(
    sightings: Mapping[str, tuple[tuple[ListedPid | None, ProcessUse], ...]],
    records: Mapping[str, TenantRecord],
) -> _Uses:
    """Return the uses by tenant and card; by card those of no tenant, and its strays.

    The tenant of an ended process may be gone as well. A stray is a tenant's on a card of which the
    tenant has no part: no quota covers it, so the card counts it as it does those of no tenant.
    """
    owned: dict[TenantOnCard, list[ProcessUse]] = {}
    others: dict[str, list[ProcessUse]] = {uuid: [] for uuid in sightings}
    strays: dict[str, list[ProcessUse]] = {uuid: [] for uuid in sightings}
    for uuid, uses in sightings.items():
        for sighting, use in uses:
            key = None if sighting is None else sighting.key
            if key is None or key not in records:
                others[uuid].append(use)
                continue
            owned.setdefault((key, uuid), []).append(use)
            if not records[key].has_part_of(uuid):
                strays[uuid].append(use)
    return _Uses(owned, others, strays)


_LOOKS: Final = 4


class Overhead:
    """The driver's memory beside a tenant's account on one card: the least of the last looks.

    `published_bytes` is the last published figure, of an earlier daemon: until there are enough
    samples it stands, for otherwise each restart would give all contexts' memory to their buffers.
    """

    def __init__(self, published_bytes: int = 0) -> None:
        self._published_bytes = published_bytes
        self._looks: deque[int] = deque(maxlen=_LOOKS)

    def observe(self, driver_bytes: int, before: TenantClaims, after: TenantClaims) -> int:
        """Return the overhead in bytes after one more look."""
        account = max(before.expected_bytes, after.expected_bytes)
        self._looks.append(max(0, driver_bytes - account))
        # Until there are enough looks one of them may be the race itself.
        known = () if len(self._looks) == _LOOKS else (self._published_bytes,)
        return min(*self._looks, *known)


def update_peaks(peaks: Mapping[TenantOnCard, int], usage: UsageView) -> Mapping[TenantOnCard, int]:
    """Return `peaks` after a sample; a tenant that is not in it any more is forgotten."""
    used = {**usage.driver_bytes, **usage.used}  # of a whole card, the driver's figure
    return MappingProxyType({place: max(size, peaks.get(place, 0)) for place, size in used.items()})


# The records that processes leave behind which ended without a word, or became another program. A
# process shows life by a lock on its record. That may be gone while the process lives: programs
# close descriptors that they did not open. A record without a lock is dead only if its process is
# gone, or does not map the status file any more (execve(2) ends mappings and what the driver gave,
# and leaves pid and start time as they were). A tenant may have twenty thousand processes, and
# write records of dead ones without an end: a search ends at its time, and the next pass goes on.

#: Of the processor: a thread that waits for its turn has not looked at anything.
TENANT_SECONDS: Final = 0.01
PASS_SECONDS: Final = 0.05
# A tenant may have a thousand processes with maps that take the kernel long to write. What cannot
# be looked into in this time is taken for alive, until a later look begins elsewhere.
_LOOK_SECONDS: Final = 0.02


class DeadRecords:
    """The searches of all tenants, from pass to pass; the truth thread's."""

    def __init__(self) -> None:
        self._searches: dict[str, _Search] = {}
        self._next = ""  # the key with which a pass begins

    def look(self, records: Mapping[str, TenantRecord], pages: Mapping[str, Pages]) -> None:
        """Free the records of dead processes, in the time that one pass has."""
        keys = sorted(pages.keys() & records.keys())
        self._searches = {key: self._searches[key] for key in keys if key in self._searches}
        first = next((place for place, key in enumerate(keys) if key >= self._next), 0)
        until = time.thread_time() + PASS_SECONDS
        mounted = cache(Cgroups.mounted)  # at most once a pass
        for key in keys[first:] + keys[:first]:
            now = time.thread_time()
            if now >= until:
                self._next = key
                return
            search = self._searches.get(key) or _Search(pages[key])
            try:
                done = search.free(records[key], now + TENANT_SECONDS, mounted)
            except OSError as error:  # the others do not wait for it
                log("process-records-free-failed", "error", tenant=key, error=str(error))
                done = True
            if done:
                self._searches.pop(key, None)
            else:
                self._searches[key] = search


class _Search:
    """Looks for a tenant's processes, which is rarely needed: they hold their locks."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._left: Iterator[int] | None = None
        self._began = 0  # in ticks since boot
        self._pids: dict[tuple[int, int], int] = {}  # by pid as it numbers itself, and start time
        self._maps: dict[int, bool] = {}  # pid -> whether it may map the status file
        self._seconds = 0.0  # spent on finding that out

    def free(self, record: TenantRecord, until: float, mounted: Callable[[], Cgroups]) -> bool:
        """Go on with the search until it is over, and free what it found dead; False: it is not."""
        if record.state != "bound" or not self._pages.look(
            lambda pages: pages.status.has_unlocked(pages.grant.card_count, until), closed=False
        ):
            return True
        if not self._go_on(record, until, mounted):
            return False
        reaped = self._pages.reap(self._is_alive)
        if reaped:
            log("process-records-freed", tenant=record.key, processes=reaped)
        return True

    def _go_on(self, record: TenantRecord, until: float, mounted: Callable[[], Cgroups]) -> bool:
        """Look at more of the processes, at one at least; True when all were looked at."""
        if self._left is None:
            self._began = int(boottime() * processes.TICKS_PER_SECOND)
            self._left = processes.pids_of(record.cgroup, record.pid, mounted())
        for pid in self._left:
            process = processes.find_process(pid)
            if process is not None:
                self._pids[process.namespaced_pid, process.starttime] = pid
            if time.thread_time() >= until:
                return False
        return True

    def _is_alive(self, pid: int, starttime: int) -> bool:
        """Whether the process is there and may map the status file; as it numbers itself."""
        host_pid = self._pids.get((pid, starttime))
        if host_pid is None:
            return starttime >= self._began  # then it may have come since
        if host_pid not in self._maps:
            began = time.thread_time()
            self._maps[host_pid] = self._seconds >= _LOOK_SECONDS or processes.may_map(
                host_pid,
                self._pages.status.inode,  # Pages.reap calls this, and holds the lock
            )
            self._seconds += time.thread_time() - began
        return self._maps[host_pid]
