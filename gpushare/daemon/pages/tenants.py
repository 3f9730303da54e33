# SPDX-License-Identifier: Apache-2.0
"""Tenants, as far as the daemon holds something of them open: pages, a socket, a process.

The decide thread adds and closes; the truth and read threads read under the tenant's lock, for a
descriptor that was closed may be another tenant's by now.

A tenant's wakeup FIFO lies beside its pages: by it, its processes wake the scheduler. It outlives
its reader. A process opens it for reading too, so that it never waits for a reader, and is never
killed because there is none (fifo(7), SIGPIPE).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from gpushare import abi
from gpushare.daemon.core.loop import Signal
from gpushare.daemon.pages.status_page import (
    MOST_COUNTED,
    ProcessClaim,
    StatusPage,
    TenantClaims,
    disown_page,
    give_page,
    opened,
    sum_claims,
)
from gpushare.protocol.rows import DeniedAllocation

# --- the grant page: what is allocated, as libhook/include/gpushare_abi.h lays it out ---
#
# It is ours to write: it is mapped, and each store is one aligned machine word, so that a tenant
# never reads half of one.

_FUTEX_WAKE: Final = 1
_ALL: Final = 0x7FFFFFFF
_BEGINNING: Final = struct.Struct("<QI")  # magic and version: at this offset in every layout
#: The offset of each card in the file, in bytes.
_CARDS: Final = tuple(map(abi.grant_card_offset, range(abi.MAX_CARDS)))
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class LayoutMismatch(OSError):
    """Pages of another version of gpushare, newer or older: whole, and not for us to read."""

    def __init__(self, version: int) -> None:
        why = f"its pages have version {version}, not {abi.ABI_VERSION}; restart the container"
        super().__init__(errno.EPROTO, why)


@dataclass(frozen=True)
class CardGrant:
    """The allocation of a tenant on one card, for its grant page."""

    uuid: str
    memory_bytes: int
    context_bytes: int
    cores: int
    managed_limit_bytes: int = 0


class Gate(NamedTuple):
    """The gate of a card at one moment, as the scheduler wrote it.

    The four times that add up are not counted while the gate is open.
    """

    mode: int  # abi.GATE_...
    heartbeat_ns: int  # in CLOCK_MONOTONIC
    charged_ns: int  # of the card's time, that the tenant had since it was added
    windows: int
    overruns: int
    demand_ns: int  # in which it had work or waited for the gate
    hung: bool
    claimed_ns: int  # of the card's time, that its processes claim, whatever others claim
    ungated_ns: int  # of those, with work that was submitted while the gate was closed


class GrantPage:
    """A tenant's grant file, mapped. One thread changes allocations, one the measured fields."""

    def __init__(self, directory: int) -> None:
        with opened(directory, abi.GRANT_NAME, os.O_RDWR) as fd:
            self._map = mmap.mmap(fd, abi.GRANT_BYTES)
        #: The number of changes of an allocation.
        self.generation = ctypes.c_uint32.from_buffer(self._map, abi.GRANT_HEADER_GENERATION)
        #: The largest limit of each card since this daemon has the file.
        self.most = [self.limit_bytes(number) for number in range(self.card_count)]

    @classmethod
    def adopt(cls, directory: int) -> GrantPage:
        """Open the grant file that another daemon made; OSError, OtherLayout where it is not ours.

        What is not ours is not even mapped.
        """
        with opened(directory, abi.GRANT_NAME, os.O_RDONLY) as fd:
            header, size = os.pread(fd, _BEGINNING.size, 0), os.fstat(fd).st_size
        magic, version = _BEGINNING.unpack(header.ljust(_BEGINNING.size, b"\0"))
        if magic != abi.ABI_MAGIC:
            raise OSError(
                errno.EPROTO, "its pages were not written by gpushared; restart the container"
            )
        if version != abi.ABI_VERSION:
            raise LayoutMismatch(version)
        if size < abi.GRANT_BYTES:
            raise OSError(errno.EPROTO, f"its grant page has {size} bytes; restart the container")
        return cls(directory)

    @classmethod
    def make(cls, directory: int, key: str, cards: Sequence[CardGrant]) -> GrantPage:
        """Write a new grant file in the directory open at `directory`."""
        assert len(cards) <= abi.MAX_CARDS
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with opened(directory, abi.GRANT_NAME, flags, 0o644) as fd:
            os.fchmod(fd, 0o644)
            disown_page(fd)
            os.ftruncate(fd, abi.GRANT_BYTES)
        grant = cls(directory)
        # Every page that will ever be written is written now: a tenant can fill its tmpfs later,
        # and a store into a page that has no memory then would end the daemon (SIGBUS).
        grant._u64(abi.GRANT_HEADER_MAGIC).value = abi.ABI_MAGIC
        grant._u32(abi.GRANT_HEADER_ABI_VERSION).value = abi.ABI_VERSION
        grant._u32(abi.GRANT_HEADER_CARD_COUNT).value = len(cards)
        grant._u32(abi.GRANT_HEADER_UNBOUND).value = 1
        grant._text(abi.GRANT_HEADER_KEY, abi.GRANT_HEADER_KEY_BYTES, key)
        if len(cards) == 1:
            size = abi.GRANT_CARD_UUID_BYTES
            grant._text(abi.GRANT_HEADER_FIRST_UUID, size, cards[0].uuid)
        grant.beat()
        grant.most = [0] * len(cards)
        for number, card in enumerate(cards):
            grant._write_card(number, card)
        grant.publish()
        return grant

    @property
    def card_count(self) -> int:
        """The number of the tenant's cards."""
        return self._u32(abi.GRANT_HEADER_CARD_COUNT).value

    def context_bytes(self, number: int) -> int:
        """Return the size of one context on card `number`, as the tenant reads it."""
        return self._card64(number, abi.GRANT_CARD_CONTEXT_BYTES).value

    def overhead_bytes(self, number: int) -> int:
        """Return what the driver was found to use beside the tenant's own account."""
        return self._card64(number, abi.GRANT_CARD_OVERHEAD_BYTES).value

    def memory_bytes(self, number: int) -> int:
        """Return the quota on card `number`."""
        return self._card64(number, abi.GRANT_CARD_QUOTA_BYTES).value

    def limit_bytes(self, number: int) -> int:
        """Return what the tenant may use of card `number` now: its quota and burst memory."""
        return self._card64(number, abi.GRANT_CARD_LIMIT_BYTES).value

    @property
    def managed_limits(self) -> list[int]:
        """How much managed memory on each card does not count against the quota."""
        limit = abi.GRANT_CARD_MANAGED_LIMIT_BYTES
        return [self._card64(number, limit).value for number in range(self.card_count)]

    def uuid(self, number: int) -> str:
        """Return the uuid of card `number`."""
        offset = _CARDS[number] + abi.GRANT_CARD_UUID
        text = self._map[offset : offset + abi.GRANT_CARD_UUID_BYTES].partition(b"\0")[0]
        return text.decode("ascii")

    def gate(self, number: int) -> Gate:
        """Return what the gate of card `number` says."""
        read = abi.GATE.unpack_from(self._map, abi.gate_offset(number))
        return Gate._make((read[0], read[5], *read[10:14], bool(read[14]), *read[16:]))

    def set_memory(self, number: int, memory_bytes: int, limit_bytes: int | None = None) -> None:
        """Change the quota on card `number`, and what may be used; None: no more than the quota.

        `publish` makes waiting tenants look.
        """
        wanted = memory_bytes if limit_bytes is None else limit_bytes
        assert wanted >= memory_bytes
        limit = self._card64(number, abi.GRANT_CARD_LIMIT_BYTES)
        memory = self._card64(number, abi.GRANT_CARD_QUOTA_BYTES)
        # A tenant that reads between the two stores must not find a limit below its quota.
        if wanted >= memory.value:
            limit.value, memory.value = wanted, memory_bytes
        else:
            memory.value, limit.value = memory_bytes, wanted
        self.most[number] = max(self.most[number], wanted)

    def set_bound(self) -> None:
        """Let the tenant's programs start: its process is known."""
        self._u32(abi.GRANT_HEADER_UNBOUND).value = 0

    def set_mps(self, *, is_client: bool) -> None:
        """Say whether each of its processes has to be a client of gpushared's MPS server."""
        self._u32(abi.GRANT_HEADER_MPS).value = int(is_client)

    def set_evicted(self, *, evicted: bool) -> None:
        """Have the tenant's calls of the driver wait for its restore, or wake those that do."""
        word = self._u32(abi.GRANT_HEADER_EVICTED)
        word.value = evicted
        _wake(word)

    def set_uuid(self, number: int, uuid: str) -> None:
        """Write that card `number` is another one: the tenant's memory is moved to it."""
        self._text(_CARDS[number] + abi.GRANT_CARD_UUID, abi.GRANT_CARD_UUID_BYTES, uuid)

    def set_context(self, number: int, context_bytes: int) -> None:
        """Write the size of one context on card `number`."""
        self._card64(number, abi.GRANT_CARD_CONTEXT_BYTES).value = context_bytes

    def set_cores(self, number: int, percent: int) -> None:
        """Write the requested percent of card `number`'s compute; 0: none."""
        self._u32(_CARDS[number] + abi.GRANT_CARD_CORES_PERCENT).value = percent

    def set_measured(self, number: int, overhead_bytes: int, utilization: int) -> None:
        """Write what the driver reports: bytes beside the tenant's account, percent of the card."""
        self._card64(number, abi.GRANT_CARD_OVERHEAD_BYTES).value = overhead_bytes
        offset = _CARDS[number] + abi.GRANT_CARD_UTILIZATION_PERCENT
        self._u32(offset).value = utilization

    def beat(self) -> None:
        """Write the time of the last sample."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._u64(abi.GRANT_HEADER_HEARTBEAT_NS).value = now

    def publish(self) -> None:
        """Count the generation up and wake the processes that wait for it."""
        self.generation.value += 1
        _wake(self.generation)

    def _write_card(self, number: int, card: CardGrant) -> None:
        self.set_uuid(number, card.uuid)
        self.set_memory(number, card.memory_bytes)
        self.set_context(number, card.context_bytes)
        self.set_cores(number, card.cores)
        limit = self._card64(number, abi.GRANT_CARD_MANAGED_LIMIT_BYTES)
        limit.value = card.managed_limit_bytes
        self._u32(_CARDS[number] + abi.GRANT_CARD_GATE + abi.GATE_MODE).value = abi.GATE_OPEN

    def _text(self, offset: int, size: int, text: str) -> None:
        encoded = text.encode("ascii")
        if len(encoded) >= size:
            raise ValueError(f"{text} is longer than the {size - 1} bytes of its place")
        self._map[offset : offset + size] = encoded.ljust(size, b"\0")

    def _card64(self, number: int, field: int) -> ctypes.c_uint64:
        return self._u64(_CARDS[number] + field)

    def _u64(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_buffer(self._map, offset)

    def _u32(self, offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self._map, offset)


def _wake(word: ctypes.c_uint32) -> None:
    """Wake the processes that wait for `word` (futex(2))."""
    _libc.syscall(
        ctypes.c_long(_SYS_FUTEX),
        ctypes.byref(word),
        ctypes.c_int(_FUTEX_WAKE),
        ctypes.c_int(_ALL),
        None,
        None,
        ctypes.c_int(0),
    )


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


class Accounts(NamedTuple):
    """What a tenant's processes claim, and the sums by its card number."""

    claims: tuple[ProcessClaim, ...]
    sums: tuple[TenantClaims, ...]
    is_current: bool  # as of now, and not of an earlier look


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
    metrics: Any = None  # the read thread's: see views/metrics.py
    # The claims at the last look, and their sums.
    _summed: tuple[tuple[ProcessClaim, ...], tuple[TenantClaims, ...]] | None = None

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

    def reap(self, is_alive: Callable[[int, int], bool]) -> int:
        """Free the records of dead processes (Status.reap), and return how many there were."""

        def free(pages: Pages) -> int:
            pages._observed()  # for what they were refused
            return pages.status.reap(is_alive, pages.grant.card_count)

        return self.look(free, 0)

    def _observed(self) -> tuple[ProcessClaim, ...]:
        claims = self.status.claims(self.grant.card_count)
        if self._summed is None or claims is not self._summed[0]:
            self.denials.observe(claims)
            grant = self.grant
            self._summed = claims, sum_claims(claims, grant.card_count, grant.managed_limits)
        return claims

    def accounts(self) -> Accounts:
        """Return the claims, and their sums by the tenant's card number.

        A tenant may rewrite a thousand records all the time. Where reading them costs much, what
        was read last stands for as long as keeps that to a tenth of the time (`is_current`).
        """

        def read(pages: Pages) -> Accounts:
            is_current = time.monotonic() >= pages._read_again
            if is_current:
                began = time.thread_time()
                pages._observed()
                took = time.thread_time() - began
                if took > COSTLY_SECONDS:
                    pages._read_again = time.monotonic() + _PAUSE_TIMES * took
            assert pages._summed is not None
            return Accounts(*pages._summed, is_current)

        return self.look(read, Accounts((), sum_claims((), self.grant.card_count), is_current=True))

    def use(self, number: int) -> tuple[int, int, int]:
        """Return what the tenant says that it uses of card `number`, and what it may use, in bytes.

        The third is the most that it was ever allowed: what it claims beyond cannot be.
        """

        def read(pages: Pages) -> tuple[int, int, int]:
            grant = pages.grant
            claims, limits = pages.status.claims(number + 1), grant.managed_limits
            [*_, account] = sum_claims(claims, number + 1, limits)
            used = account.used_bytes(grant.overhead_bytes(number))
            return used, grant.limit_bytes(number), grant.most[number]

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
