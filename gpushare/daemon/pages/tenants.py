# SPDX-License-Identifier: Apache-2.0
"""Tenants, as far as the daemon holds something of them open: pages, a socket, a process.

The decide thread adds and closes; the truth and read threads read under the tenant's lock, for a
descriptor that was closed may be another tenant's by now.

A tenant's wakeup FIFO lies beside its pages: by it, its processes wake the scheduler. It outlives
its reader. A process opens it for reading too, so that it never waits for a reader, and is never
killed because there is none (fifo(7), SIGPIPE).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from gpushare import abi
from gpushare.daemon.core.loop import Signal
from gpushare.daemon.pages.grant_page import CardGrant, GrantPage
from gpushare.daemon.pages.status_page import (
    MOST_COUNTED,
    ProcessClaim,
    StatusPage,
    TenantClaims,
    give_page,
    opened,
    sum_claims,
)
from gpushare.protocol.rows import DeniedAllocation

#: The size of a tenant's files: both of them, and the variables of an MPS client, twice while
#: they are replaced. The FIFO takes none.
SIZE_BYTES: Final = abi.GRANT_BYTES + abi.STATUS_BYTES + 2 * abi.PAGE_BYTES

# Of the processor, for one tenant's claims: those of 300 processes take a third of it, and must be
# new at each look.
COSTLY_SECONDS: Final = 0.015
_PAUSE_TIMES: Final = 10

PagesResult = TypeVar("PagesResult")


@dataclass
class Denials:
    """The allocations that a tenant was refused, also those of processes that have ended.

    A record ends with its process. Its last count is kept in this object as long as the daemon
    runs.
    """

    last: DeniedAllocation | None = None  # a program seldom outlives it for long
    watched: bool = False  # so that what is new was refused since the last look
    seen: int = 0  # of `total`, those of which it was looked on
    _ended: int = 0
    _held: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Their number at the last look, at most MOST_COUNTED."""
        return min(self._ended + sum(self._held.values()), MOST_COUNTED)

    def observe(self, claims: Sequence[ProcessClaim]) -> None:
        """Note what is claimed now; one that claims less than before has ended, or called exec."""
        before = self.total
        held = {claim.record: claim.denied for claim in claims}
        ended = sum(max(0, denied - held.get(record, 0)) for record, denied in self._held.items())
        self._ended = min(self._ended + ended, MOST_COUNTED)
        for claim in claims:
            if claim.denied > self._held.get(claim.record, 0):
                at = time.time() if self.watched else None
                self.last = DeniedAllocation(
                    bytes=claim.denied_bytes, container_pid=claim.pid, seen=at
                )
        self._held = held
        if self.watched:
            self.seen += self.total - before
        self.watched = True


@dataclass
class Pages:
    """A tenant's directory and the files in it; `overhead` are the driver's figures, by card."""

    directory: int
    grant: GrantPage
    status: StatusPage
    denials: Denials = field(default_factory=Denials)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False
    adopted: bool = False  # an earlier daemon made them
    # By card number: what the tenant may keep above its limit, since that was lowered. The decide
    # thread replaces the numbers; any may read them.
    kept: dict[int, int] = field(default_factory=dict)
    _read_again: float = 0.0  # monotonic seconds, from which on the claims are read again
    is_current: bool = True  # whether `accounts` has read the claims when it was last called
    metrics: Any = None  # the read thread's: see views/metrics.py
    # The claims at the last look, and their sums.
    _summed: tuple[tuple[ProcessClaim, ...] | None, tuple[TenantClaims, ...]] = (None, ())

    @classmethod
    def make(
        cls, directory: int, key: str, cards: Sequence[CardGrant], owner: int | None = None
    ) -> Pages:
        """Make the files in the directory open at `directory`, which is owned from now on."""
        try:
            grant = GrantPage.make(directory, key, cards)
            status = StatusPage.make(directory, owner=owner)
            os.mkfifo(abi.WAKEUP_NAME, 0o600, dir_fd=directory)
            with opened(directory, abi.WAKEUP_NAME, os.O_RDWR) as fd:
                give_page(fd, owner)  # any process that sees it may write to it, or only `owner`
            return cls(directory, grant, status, Denials(watched=True))
        except BaseException:
            os.close(directory)
            raise

    @classmethod
    def adopt(cls, directory: int) -> Pages:
        """Open the files that an earlier daemon made."""
        try:
            return cls(directory, GrantPage.adopt(directory), StatusPage(directory), adopted=True)
        except BaseException:
            os.close(directory)
            raise

    def look(self, function: Callable[[Pages], PagesResult], closed: PagesResult) -> PagesResult:
        """Return what `function` finds in the pages, `closed` when they are gone."""
        with self.lock:
            return closed if self.closed else function(self)

    def claims(self) -> tuple[ProcessClaim, ...]:
        """Return what the tenant's processes say that they use."""
        return self.look(Pages._observed, ())

    def claims_and_sums(self) -> tuple[tuple[ProcessClaim, ...], tuple[TenantClaims, ...]]:
        """Return the same, and its sums by the tenant's card number: none if the pages are gone."""
        gone: tuple[tuple[ProcessClaim, ...], tuple[TenantClaims, ...]] = ((), ())
        return self.look(lambda pages: (pages._observed(), pages._summed[1]), gone)  # noqa: SLF001

    def reap(self, is_alive: Callable[[int, int], bool]) -> int:
        """Free the records of dead processes (Status.reap), and return how many there were."""

        def free(pages: Pages) -> int:
            pages._observed()  # for what they were refused
            return pages.status.reap(is_alive, pages.grant.card_count)

        return self.look(free, 0)

    def has_unlocked(self, until: float) -> bool:
        """Whether a process's record may have no lock (StatusPage.has_unlocked)."""
        return self.look(
            lambda pages: pages.status.has_unlocked(pages.grant.card_count, until), False
        )

    def _observed(self) -> tuple[ProcessClaim, ...]:
        claims = self.status.claims(self.grant.card_count)
        if claims is not self._summed[0]:
            self.denials.observe(claims)
            grant = self.grant
            self._summed = claims, sum_claims(claims, grant.card_count, grant.managed_limits)
        return claims

    def accounts(self) -> tuple[TenantClaims, ...]:
        """Return the sums of the claims, by the tenant's card number.

        A tenant may rewrite a thousand records all the time. Where reading them costs much, what
        was read last stands for as long as keeps that to a tenth of the time (`is_current`).
        """

        def summed(pages: Pages) -> tuple[TenantClaims, ...]:
            pages.is_current = time.monotonic() >= pages._read_again
            if pages.is_current:
                began = time.thread_time()
                pages._observed()
                took = time.thread_time() - began
                if took > COSTLY_SECONDS:
                    pages._read_again = time.monotonic() + _PAUSE_TIMES * took
            return pages._summed[1]

        sums = self.look(summed, None)
        return sum_claims((), self.grant.card_count) if sums is None else sums

    def last_claims(self) -> tuple[ProcessClaim, ...]:
        """Return the claims that `accounts` summed last; call it right after that."""
        return self._summed[0] or ()

    def use(self, number: int) -> tuple[int, int, int]:
        """Return what the tenant says that it uses of card `number`, and what it may use, in bytes.

        The third is the most that it was ever allowed: what it claims beyond cannot be.
        """

        def read(pages: Pages) -> tuple[int, int, int]:
            grant = pages.grant
            claims, limits = pages.status.claims(number + 1), grant.managed_limits
            [*_, account] = sum_claims(claims, number + 1, limits)
            used = account.used_bytes(grant.overhead_bytes(number))
            return used, grant.limit_bytes(number), grant.most_bytes(number)

        return self.look(read, (0, 0, 0))

    def write_limit(self, number: int, memory_bytes: int, limit_bytes: int) -> None:
        """Write the tenant's quota on card `number`, and what it may use."""
        self.grant.set_memory(number, memory_bytes, limit_bytes)
        self.grant.publish()

    def close(self) -> None:
        """Close the files; the caller removes the directory."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self.status.close()
                os.close(self.directory)


class Tenants:
    """The open tenants by key. `pages` is replaced, never changed, so any thread may read it."""

    def __init__(self) -> None:
        self.pages: Mapping[str, Pages] = MappingProxyType({})
        #: With the key of a tenant that is about to be released; the decide thread's.
        self.releasing: Signal[[str]] = Signal()
        #: With the key of one of which there is no record any more; likewise.
        self.released: Signal[[str]] = Signal()
        self.ended: Mapping[tuple[str, float], Any] = MappingProxyType({})  # see views/metrics.py

    def add(self, key: str, pages: Pages) -> None:
        """Hold `pages` for tenant `key`."""
        self.pages = MappingProxyType({**self.pages, key: pages})

    def remove(self, key: str) -> None:
        """Close what is held for tenant `key`. One that is not there is fine."""
        pages = self.pages.get(key)
        if pages is not None:
            rest = {other: kept for other, kept in self.pages.items() if other != key}
            self.pages = MappingProxyType(rest)
            pages.close()
