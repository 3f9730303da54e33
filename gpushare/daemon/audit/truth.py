# SPDX-License-Identifier: Apache-2.0
"""The driver's own figures, put beside what the tenants say: overhead, utilisation, foreign use.

Every look reads the tenants' accounts, then the driver, then the accounts again. What it has above
the larger of the two accounts is overhead: what contexts and modules take beyond their price, what
the driver keeps, what no account knows of. The three reads are not one moment, so a single look may
be wrong by what was allocated between them; the least of the last few is published, and a race
never refuses what there is room for.

Whose a process is, its cgroup says; where the tenant has none of its own, its ancestors do; of what
the driver lists under a number whose process has ended, nobody can tell (identity/sightings.py). A
process of nobody is foreign once it was seen in two looks, and never while it is one that a tenant,
or the daemon, has just left behind.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from gpushare import abi
from gpushare.daemon.audit.foreign import ForeignUse
from gpushare.daemon.audit.overhead import Overhead
from gpushare.daemon.audit.reap import reap
from gpushare.daemon.audit.view import CardTruth, Look, View
from gpushare.daemon.cards.card import (
    Card,
    Driver,
    DriverError,
    Generation,
    Implausible,
    Sample,
    Use,
)
from gpushare.daemon.cards.health import Health
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.owners import Owners
from gpushare.daemon.identity.sightings import Sighting, Sightings
from gpushare.daemon.log import log
from gpushare.daemon.pages.account import Account, Claim
from gpushare.daemon.store.ledger import Entry, Ledger
from gpushare.daemon.tenants import Pages, Tenants

_REAP_SECONDS: Final = 1.0
_UNSETTLED: Final = "it has just changed, and is looked at anew"


class Truth:
    """Looks at the driver; `view` is the last look. `look` is the truth thread's."""

    def __init__(  # noqa: PLR0913 - what is made of a look is told to several
        self,
        driver: Driver,
        ledger: Ledger,
        tenants: Tenants,
        *,
        foreign_half_life: float,
        learned: Callable[[Card, str, int], None],
        holds: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self.view = View()
        self.last: Look | None = None  # None: it was not answered
        self.sightings = Sightings(holds)
        self.health = Health()
        # Called where the driver or its cards are others than before; `settle` is the answer.
        self.changed: Callable[[Generation], None] = lambda _: None
        self._driver = driver
        self._ledger = ledger
        self._tenants = tenants
        self._cards = {card.uuid: card for card in driver.cards()}
        self._foreign = ForeignUse(foreign_half_life)
        self._overheads: dict[tuple[str, int], Overhead] = {}
        self._learned = learned
        self._generation: Generation | None = None
        self._unsettled: frozenset[str] = frozenset()  # cards that are not understood yet
        self._fault = ""  # of the driver: what was logged last
        self._first = True
        self._reaped = 0.0

    def excuse(self, pid: int) -> None:
        """Never count `pid`, a program of the daemon's own, as foreign."""
        self._foreign.excuse(pid, time.monotonic())

    def settle(self, generation: Generation) -> None:
        """Take the cards of `generation` for understood; the next look may judge them. Any thread.

        One that has come meanwhile is told of on its own.
        """
        if generation == self._generation:
            self._unsettled = frozenset()

    def peek(self) -> Sample | None:
        """Ask the driver alone; None where it does not answer, which a look says in full."""
        try:
            sample = self._driver.sample()
        except DriverError:
            return None
        self.health.note(sample, self._cards)
        return sample

    def look(self) -> None:
        """Look once, and write what was found into the tenants' grant pages.

        Whatever goes wrong makes the view stale and is no end of looking: nobody else looks.
        """
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - see above
            if not self.view.stale:
                log("look-failed", "error", traceback=traceback.format_exc())
            self._go_stale(f"gpushared could not look ({type(error).__name__}); see its log")

    def _look(self) -> None:
        now = time.monotonic()
        entries = self._ledger.entries
        pages = dict(self._tenants.pages)
        if now - self._reaped >= _REAP_SECONDS:
            self._reaped = now
            self._reap(entries, pages)
        before, claimed = _accounts(pages)
        try:
            sample = self._driver.sample()
        except Implausible as error:
            if self._fault != "implausible":
                log("driver-implausible", "error", why=str(error))
            self._fault = "implausible"
            self._go_stale(str(error))
            return
        except DriverError as error:
            if self._fault != "silent":
                log("driver-silent", "error", why=str(error))
            self._fault = "silent"
            self._go_stale(str(error))
            return
        if self._fault:
            self._fault = ""
            log("driver-answers", "info")
        self.health.note(sample, self._cards)
        if self._is_other(sample.generation):
            return
        after, claimed_after = _accounts(pages)
        sightings = self._sighted(sample, entries)
        seen = {
            uuid: tuple((sightings.get(use.pid), use) for use in uses)
            for uuid, uses in sample.uses.items()
        }
        owned = {uuid: _owned(uses) for uuid, uses in seen.items()}
        used: dict[tuple[str, str], int] = {}
        for key, held in pages.items():
            if key in entries:
                used |= self._measure(entries[key], held, owned, before[key], after[key])
        self._forget(pages)
        self._publish(now, sample, owned, used)
        judged = {uuid: uses for uuid, uses in seen.items() if uuid not in self._unsettled}
        self.last = Look(entries, pages, sample, judged, claimed, claimed_after)

    def _sighted(self, sample: Sample, entries: Mapping[str, Entry]) -> Mapping[int, Sighting]:
        pids = {use.pid for uses in sample.uses.values() for use in uses}
        return self.sightings.look(pids, Owners(entries).all_of, entries)

    def _is_other(self, now: Generation) -> bool:
        """Whether the driver or its cards are others than at the last look: then judge nobody."""
        before, self._generation = self._generation, now
        if before is None or before == now:
            return False
        self._cards = {card.uuid: card for card in self._driver.cards()}
        changed = now.changed_cards(before)
        self._unsettled |= changed
        log(
            "driver-generation",
            "warning",
            driver=now.driver,
            before=before.driver,
            cards=sorted(changed),
            loads=now.loads,
        )
        what = f"card {', '.join(sorted(changed))}" if changed else "its library was loaded anew"
        self._go_stale(f"the driver is not as it was at the last look ({what})")
        self.changed(now)
        return True

    def _reap(self, entries: Mapping[str, Entry], pages: Mapping[str, Pages]) -> None:
        cgroups = processes.Cgroups.mounted()
        for key in pages.keys() & entries.keys():
            try:
                reap(entries[key], pages[key], cgroups)
            except OSError as error:  # the others do not wait for it
                log("reap-failed", "error", tenant=key, error=str(error))

    def _measure(
        self,
        entry: Entry,
        pages: Pages,
        owned: Mapping[str, tuple[tuple[str | None, Use], ...]],
        before: tuple[Account, ...],
        after: tuple[Account, ...],
    ) -> dict[tuple[str, str], int]:
        """Write what the driver has of a tenant into its page; return what it uses in all."""
        used: dict[tuple[str, str], int] = {}
        for number, holding in enumerate(entry.holdings):
            uses = [use for key, use in owned.get(holding.uuid, ()) if key == entry.key]
            if number >= len(after) or number >= len(before):
                continue
            overhead = self._overheads.get((entry.key, number))
            if overhead is None:
                overhead = Overhead(pages.look(_published(number), 0))
                self._overheads[entry.key, number] = overhead
            if holding.uuid in owned and all(use.bytes is not None for use in uses):
                driver_bytes = sum(use.bytes or 0 for use in uses)
                measured = overhead.observe(driver_bytes, before[number], after[number])
            else:  # nothing that is said is not nothing that is held
                measured = pages.look(_published(number), 0)
            share = min(100, sum(use.utilisation or 0 for use in uses))
            pages.look(_write(number, measured, share), None)
            if _tells_of_contexts(overhead, after[number], measured, len(uses)):
                contexts = after[number].contexts
                price = pages.look(_priced(number), 0)  # no context is charged at more than that
                each = measured // contexts + min(
                    after[number].kinds[abi.KIND_CONTEXT] // contexts, price
                )
                self._learned(self._cards[holding.uuid], entry.key, each)
            used[entry.key, holding.uuid] = after[number].used_bytes(measured)
        return used

    def _publish(
        self,
        now: float,
        sample: Sample,
        owned: Mapping[str, tuple[tuple[str | None, Use], ...]],
        used: Mapping[tuple[str, str], int],
    ) -> None:
        cards: dict[str, CardTruth] = {}
        by_tenant: dict[str, list[tuple[str, Use]]] = {}
        utilisation: dict[tuple[str, str], int] = {}
        health = dict(self.health.observe(sample, self._cards))
        health |= dict.fromkeys(self._unsettled & health.keys(), _UNSETTLED)
        for uuid in self._cards:
            if uuid not in owned:
                known = self.view.cards.get(uuid, CardTruth())
                cards[uuid] = replace(known, health=health[uuid], utilisation=None)
                continue
            strangers = []
            for key, use in owned[uuid]:
                if key is None:
                    strangers.append(use)
                    continue
                self._foreign.excuse(use.pid, now)
                by_tenant.setdefault(key, []).append((uuid, use))
                if use.utilisation is not None:
                    spent = utilisation.get((key, uuid), 0) + use.utilisation
                    utilisation[key, uuid] = min(100, spent)
            found = self._foreign.observe(now, uuid, tuple(strangers), first=self._first)
            busy = sample.utilisation.get(uuid)
            cards[uuid] = CardTruth(found.foreign, found.foreign_bytes, health[uuid], busy)
        self._first = False
        self.view = View(
            MappingProxyType(cards),
            MappingProxyType({key: tuple(uses) for key, uses in by_tenant.items()}),
            MappingProxyType(utilisation),
            MappingProxyType(dict(used)),
        )

    def _go_stale(self, why: str) -> None:
        """Keep what was known, and say that it is old; what has changed is promised to nobody."""
        self.last = None
        view = self.view
        cards = {
            uuid: replace(known, health=_UNSETTLED) if uuid in self._unsettled else known
            for uuid, known in view.cards.items()
        }
        self.view = replace(view, cards=MappingProxyType(cards), stale=why)

    def _forget(self, pages: Mapping[str, Pages]) -> None:
        for key, number in [slot for slot in self._overheads if slot[0] not in pages]:
            del self._overheads[key, number]


def _tells_of_contexts(overhead: Overhead, account: Account, measured: int, processes: int) -> bool:
    """Whether what is beside a tenant's account is its contexts, as far as that can be seen."""
    return bool(measured) and overhead.is_settled and 0 < account.contexts <= processes


def _accounts(
    pages: Mapping[str, Pages],
) -> tuple[dict[str, tuple[Account, ...]], dict[str, tuple[Claim, ...]]]:
    """Return what all tenants say now: summed by card, and by process."""
    sums = {key: held.accounts() for key, held in pages.items()}
    return sums, {key: held.last_claims() for key, held in pages.items()}


def _owned(
    uses: tuple[tuple[Sighting | None, Use], ...],
) -> tuple[tuple[str | None, Use], ...]:
    return tuple((None if sighting is None else sighting.key, use) for sighting, use in uses)


def _published(number: int) -> Callable[[Pages], int]:
    return lambda pages: pages.grant.overhead_bytes(number)


def _priced(number: int) -> Callable[[Pages], int]:
    return lambda pages: pages.grant.context_bytes(number)


def _write(number: int, overhead_bytes: int, utilisation: int) -> Callable[[Pages], None]:
    def write(pages: Pages) -> None:
        pages.grant.set_measured(number, overhead_bytes, utilisation)
        pages.grant.beat()

    return write
