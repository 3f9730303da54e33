# SPDX-License-Identifier: Apache-2.0
"""What the daemon holds open for each tenant: its pages, its socket, its process.

The decide thread adds and closes; the truth and read threads look, under the tenant's lock, for a
descriptor that was closed may be another tenant's by now.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

from gpushare import abi
from gpushare.daemon.pages import bell
from gpushare.daemon.pages.account import Account, Claim, accounts
from gpushare.daemon.pages.grant import Grant, Granted
from gpushare.daemon.pages.status import Status

#: What a tenant's files may take: both of them, and nothing else. Its bell takes none.
SIZE_BYTES: Final = abi.GRANT_BYTES + abi.STATUS_BYTES

Result = TypeVar("Result")


@dataclass(frozen=True)
class Denial:
    """One refused allocation; `seen` is seconds since the epoch, None where it is not known."""

    bytes: int
    pid: int  # in its own pid namespace
    seen: float | None


@dataclass
class Denials:
    """How many allocations a tenant was refused, also those of processes that have ended.

    A record ends with its process. What it said when it was last read is kept here, as long as
    the daemon runs. `last` is the last refusal: a program seldom outlives it for long.
    """

    last: Denial | None = None
    watched: bool = False  # so that what is new was refused since the last look
    seen: int = 0  # of `total`, those of which it was looked on
    _ended: int = 0
    _held: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many it were at the last look."""
        return self._ended + sum(self._held.values())

    def observe(self, claims: Sequence[Claim]) -> None:
        """Note what is claimed now; who claims less than before has ended, or begun anew (exec)."""
        before = self.total
        held = {(claim.number, claim.pid, claim.starttime): claim.denied for claim in claims}
        self._ended += sum(
            max(0, denied - held.get(record, 0)) for record, denied in self._held.items()
        )
        for claim in claims:
            if claim.denied > self._held.get((claim.number, claim.pid, claim.starttime), 0):
                seen = time.time() if self.watched else None
                self.last = Denial(claim.denied_bytes, claim.pid, seen)
        self._held = held
        if self.watched:
            self.seen += self.total - before
        self.watched = True


@dataclass
class Pages:
    """A tenant's directory and the files in it; `overhead` are the driver's figures, by card."""

    directory: int
    grant: Grant
    status: Status
    denials: Denials = field(default_factory=Denials)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False
    adopted: bool = False  # an earlier daemon made them
    # What was claimed at the last look, and the sums of it.
    _summed: tuple[tuple[Claim, ...] | None, tuple[Account, ...]] = (None, ())

    @classmethod
    def make(
        cls, directory: int, key: str, cards: Sequence[Granted], owner: int | None = None
    ) -> Pages:
        """Make the files in the directory open at `directory`, which is owned from now on."""
        try:
            grant, status = Grant.make(directory, key, cards), _status(directory, owner)
            bell.make(directory, owner=owner)
            return cls(directory, grant, status, Denials(watched=True))
        except BaseException:
            os.close(directory)
            raise

    @classmethod
    def adopt(cls, directory: int) -> Pages:
        """Open the files that an earlier daemon made."""
        try:
            return cls(directory, Grant.adopt(directory), Status(directory), adopted=True)
        except BaseException:
            os.close(directory)
            raise

    def look(self, function: Callable[[Pages], Result], closed: Result) -> Result:
        """Return what `function` finds in the pages, `closed` when they are gone."""
        with self.lock:
            return closed if self.closed else function(self)

    def claims(self) -> tuple[Claim, ...]:
        """Return what the tenant's processes say that they use."""
        return self.look(Pages._observed, ())

    def reap(self, is_alive: Callable[[int, int], bool]) -> int:
        """Free the records of dead processes (Status.reap), and return how many there were."""

        def free(pages: Pages) -> int:
            pages._observed()  # for what they were refused
            return pages.status.reap(is_alive, pages.grant.card_count)

        return self.look(free, 0)

    def _observed(self) -> tuple[Claim, ...]:
        claims = self.status.claims(self.grant.card_count)
        if claims is not self._summed[0]:
            self.denials.observe(claims)
            self._summed = claims, accounts(claims, self.grant.card_count)
        return claims

    def accounts(self) -> tuple[Account, ...]:
        """Return the sums of the claims, by the tenant's card number."""

        def summed(pages: Pages) -> tuple[Account, ...]:
            pages._observed()
            return pages._summed[1]

        found = self.look(summed, None)
        return accounts((), self.grant.card_count) if found is None else found

    def last_claims(self) -> tuple[Claim, ...]:
        """Return the claims that `accounts` summed last; whoever has just asked it asks."""
        return self._summed[0] or ()

    def use(self, number: int) -> tuple[int, int, int]:
        """Return what the tenant says that it uses of card `number`, and what it may use, in bytes.

        The third is the most that it was ever allowed: what it claims beyond cannot be.
        """

        def read(pages: Pages) -> tuple[int, int, int]:
            grant = pages.grant
            [*_, account] = accounts(pages.status.claims(number + 1), number + 1)
            used = account.used_bytes(grant.overhead_bytes(number))
            return used, grant.limit_bytes(number), grant.most_bytes(number)

        return self.look(read, (0, 0, 0))

    def write_limit(self, number: int, memory_bytes: int, limit_bytes: int) -> None:
        """Tell the tenant what it is promised of card `number`, and what it may use."""
        self.grant.set_memory(number, memory_bytes, limit_bytes)
        self.grant.publish()

    def close(self) -> None:
        """Close the files; the directory is somebody else's to remove."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self.status.close()
                os.close(self.directory)


def _status(directory: int, owner: int | None) -> Status:
    return Status.make(directory, owner=owner)


class Tenants:
    """The open tenants by key. `pages` is replaced, never changed, so any thread may read it."""

    def __init__(self) -> None:
        self.pages: Mapping[str, Pages] = MappingProxyType({})
        # Of whom the driver may hold other limits than their pages say; the decide thread's.
        self.limits_left: set[str] = set()

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
