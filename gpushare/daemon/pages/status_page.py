# SPDX-License-Identifier: Apache-2.0
"""The status page: what a tenant's processes claim, as libhook/include/gpushare_abi.h lays it out.

The page is the tenant's. It may contain anything, or be truncated while it is read: it is read with
pread and never mapped, and every number in it, and every sum of them, is a claim. Each number is
bounded where it is read, so that every sum over processes is an integer that JSON has everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpushare import abi


@dataclass(frozen=True)
class MemoryUse:
    """The memory on one card that one process claims, or all processes together."""

    held_bytes: int = 0  # of all kinds, and what is pending
    kinds: tuple[int, ...] = (0,) * abi.KINDS  # bytes by `abi.KIND_...`
    contexts: int = 0
    pool_kept_bytes: int = 0
    exported_bytes: int = 0
    imported_bytes: int = 0

    def at_most(self, most_bytes: int) -> MemoryUse:
        """Return the same for a card of `most_bytes`, of which no process holds more."""
        sizes = {name: min(size, most_bytes) for name, size in vars(self).items() if name in _SIZES}
        return replace(self, kinds=tuple(min(size, most_bytes) for size in self.kinds), **sizes)


_SIZES: Final = ("held_bytes", "pool_kept_bytes", "exported_bytes", "imported_bytes")


@dataclass(frozen=True)
class ProcessClaim:
    """The claims of one process about itself."""

    number: int
    pid: int  # in its own pid namespace
    shares: bool  # it has exported or imported memory
    starttime: int
    denied: int
    denied_bytes: int  # the size of the last refused allocation
    held: tuple[MemoryUse, ...]  # by card number

    @property
    def record(self) -> tuple[int, int, int]:
        """The record that it is from: a number may be another process's later."""
        return self.number, self.pid, self.starttime


@dataclass(frozen=True)
class TenantClaims(MemoryUse):
    """The memory on one card that a tenant's processes claim; `imported_bytes` is the most."""

    managed_limit_bytes: int = 0  # so much managed memory does not count against the quota

    @property
    def spared_bytes(self) -> int:
        """Managed memory that does not count against the quota."""
        return min(self.kinds[abi.KIND_MANAGED], self.managed_limit_bytes, self.held_bytes)

    @property
    def orphaned_bytes(self) -> int:
        """Memory that outlived its creator: processes map more than all of them export."""
        return max(0, self.imported_bytes - self.exported_bytes)

    @property
    def expected_bytes(self) -> int:
        """The part of it that the driver should report: all but managed memory."""
        return max(0, self.held_bytes - self.kinds[abi.KIND_MANAGED]) + self.orphaned_bytes

    def used_bytes(self, overhead_bytes: int) -> int:
        """Return all that counts against the quota, as gpushare_abi.h has it."""
        held_bytes = self.held_bytes - self.spared_bytes
        return held_bytes + overhead_bytes + self.orphaned_bytes


def sum_claims(
    claims: Iterable[ProcessClaim], cards: int, managed_limits: Sequence[int] = ()
) -> tuple[TenantClaims, ...]:
    """Return the sums of `claims` for each of `cards`, with `managed_limits` of the first ones."""
    claims = tuple(claims)
    limits = (*managed_limits, *(0,) * cards)
    held = [[claim.held[number] for claim in claims] for number in range(cards)]
    return tuple(
        TenantClaims(
            held_bytes=sum(use.held_bytes for use in uses),
            kinds=tuple(sum(use.kinds[kind] for use in uses) for kind in range(abi.KINDS)),
            contexts=sum(use.contexts for use in uses),
            pool_kept_bytes=sum(use.pool_kept_bytes for use in uses),
            exported_bytes=sum(use.exported_bytes for use in uses),
            imported_bytes=max((use.imported_bytes for use in uses), default=0),
            managed_limit_bytes=limit,
        )
        for uses, limit in zip(held, limits, strict=False)
    )


_NOBODYS: Final = 2**32 - 3  # no process has it: not -1, and not -2, which systems call nobody
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock, fcntl(2)
_F_OFD_GETLK: Final = 36
_F_OFD_SETLK: Final = 37
_WORD: Final = 8
_CLEARED: Final = (abi.USAGE_IMPORTED, abi.USAGE_HELD, abi.USAGE_PENDING, abi.USAGE_EXPORTED)
_NO_WORK: Final = bytes(abi.WORK_BYTES)
_NO_DETAIL: Final = bytes(abi.DETAIL_BYTES)
_NOTHING: Final = MemoryUse()
#: Bounds of what one process claims; MAX_PROCESSES of them are at most 1 << 53 together.
_MOST_BYTES: Final = 1 << 42  # on one card, more than any card has
_MOST_DENIED: Final = 1 << 43
_MOST_CONTEXTS: Final = 1 << 16
#: The maximum of a count that adds up over time: JSON has a number for it everywhere.
MOST_COUNTED: Final = 1 << 53


class GateWaits(NamedTuple):
    """The waits at a gate that processes claim: threads' time, and launches that gave up."""

    throttled_ns: int = 0
    forced: int = 0


_NEVER: Final = GateWaits()


def disown_page(fd: int) -> None:
    """Give a file of a tenant to nobody, where we may: its root could take a lease on its own.

    A process that opens the file then waits until the lease is released, or for 45 seconds
    (fcntl(2), F_SETLEASE; /proc/sys/fs/lease-break-time), and so would a restarted daemon.
    """
    with contextlib.suppress(PermissionError):
        os.fchown(fd, _NOBODYS, -1)


@contextlib.contextmanager
def opened(directory: int, name: str, flags: int, mode: int = 0) -> Iterator[int]:
    """Open one of a tenant's files in the directory that is open at `directory`; OSError.

    No link is followed, and nothing that a tenant may have put in its place is waited for.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, mode, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def give_page(fd: int, owner: int | None) -> None:
    """Let any process that sees a tenant's file write it, or only `owner` if there is one."""
    if owner is None:
        os.fchmod(fd, 0o666)
        disown_page(fd)
    else:
        os.fchown(fd, owner, -1)


class StatusPage:
    """A tenant's status file, by descriptor."""

    def __init__(self, directory: int) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self.fd = os.open(abi.STATUS_NAME, flags, dir_fd=directory)
        # By number of cards: the hash of what was read last, and its claims.
        self._known: dict[int, tuple[int, tuple[ProcessClaim, ...]]] = {}

    @classmethod
    def make(cls, directory: int, *, owner: int | None = None) -> StatusPage:
        """Write a new status file; anybody may write it, or only `owner` if there is one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with opened(directory, abi.STATUS_NAME, flags, 0o600) as fd:
            give_page(fd, owner)
            os.ftruncate(fd, abi.STATUS_BYTES)
            os.pwrite(fd, abi.STATUS_HEADER.pack(abi.ABI_MAGIC, abi.ABI_VERSION, 0, 0, 0), 0)
        return cls(directory)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def claims(self, cards: int) -> tuple[ProcessClaim, ...]:
        """Return what each registered process claims; fewer where the tenant broke the file.

        It is the same object as before where the file says the same: most looks find nothing new.
        """
        high_water = self._high_water()
        if not high_water:
            return ()
        records = os.pread(self.fd, high_water * abi.PROCESS_BYTES, abi.STATUS_PROCESS_OFFSET)
        arrays = [_read_arrays(self.fd, card, high_water) for card in range(cards)]
        read = hash((records, *arrays))
        known = self._known.get(cards)
        if known is None or known[0] != read:
            known = self._known[cards] = read, tuple(_claims(records, arrays))
        return known[1]

    def waits(self, card: int) -> dict[int, GateWaits]:
        """Return what the processes claim of card `card`, by their number, if they ever waited."""
        size = self._high_water() * abi.WORK_BYTES
        records = os.pread(self.fd, size, abi.status_work_offset(card))
        whole = records[: len(records) - len(records) % abi.WORK_BYTES]
        waits = {
            number: GateWaits(min(work[7], MOST_COUNTED), work[8])
            for number, work in enumerate(abi.WORK.iter_unpack(whole))
        }
        return {number: waited for number, waited in waits.items() if waited != _NEVER}

    def _high_water(self) -> int:
        """Return how many records were ever in use; 0 where the tenant broke the file."""
        header = os.pread(self.fd, abi.STATUS_HEADER_BYTES, 0)
        if len(header) < abi.STATUS_HEADER_BYTES:
            return 0
        high_water: int = abi.STATUS_HEADER.unpack(header)[2]
        return min(high_water, abi.MAX_PROCESSES)

    def reap(self, is_alive: Callable[[int, int], bool], cards: int) -> int:
        """Free the records of processes that are dead, and return how many there were.

        `is_alive` is called with (pid, starttime) as the process has them, for processes that hold
        no lock on their record. Nothing is done while a process of the tenant holds the page's
        lock: we never wait for a tenant.
        """
        claims = self.claims(cards)
        # In any order: `is_alive` may give up before the end of them.
        dead = [
            claim
            for claim in random.sample(claims, len(claims))
            if not self._is_locked(claim.number) and not is_alive(claim.pid, claim.starttime)
        ]
        if not dead or not self._lock():
            return 0
        try:
            # Once more, now that no other thread reaps: the record may be another process's by now.
            now = {claim.record for claim in self.claims(cards)}
            dead = [
                claim for claim in dead if claim.record in now and not self._is_locked(claim.number)
            ]
            for claim in dead:
                self._clear(claim.number, cards)
        finally:
            fcntl.fcntl(self.fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0))
        return len(dead)

    def has_unlocked(self, cards: int, until: float) -> bool:
        """Whether a record may have no lock, as far as that is told by `until` (thread_time)."""
        return any(
            time.thread_time() >= until or not self._is_locked(claim.number)
            for claim in self.claims(cards)
        )

    @property
    def inode(self) -> int:
        """The file's inode number, by which it is known among what a process maps."""
        return os.fstat(self.fd).st_ino

    def is_held(self) -> bool:
        """Whether a registered process holds the lock on its record."""
        return any(self._is_locked(claim.number) for claim in self.claims(0))

    def _clear(self, number: int, cards: int) -> None:
        """Free a record: what it held first, or a new owner would inherit it."""
        for card in range(cards):
            usage = abi.status_usage_offset(card)
            for field in _CLEARED:
                os.pwrite(self.fd, bytes(_WORD), usage + field + number * _WORD)
            detail = usage + abi.USAGE_DETAIL + number * abi.DETAIL_BYTES
            os.pwrite(self.fd, _NO_DETAIL, detail)
            # Pending work ended with its process: the others' turn must not wait for it.
            os.pwrite(self.fd, _NO_WORK, abi.status_work_offset(card, number))
        record = abi.status_process_offset(number)
        os.pwrite(self.fd, bytes(abi.PROCESS_BYTES - 8), record + 8)
        os.pwrite(self.fd, bytes(8), record)

    def _is_locked(self, number: int) -> bool:
        """Whether a process holds its record's lock (an OFD lock: it ends with the process)."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, abi.status_process_offset(number), 1, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(self.fd, _F_OFD_GETLK, query))
        return bool(answer[0] != fcntl.F_UNLCK)

    def _lock(self) -> bool:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            fcntl.fcntl(self.fd, _F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            return False
        return True


def _claims(records: bytes, arrays: Sequence[_CardArrays]) -> Iterator[ProcessClaim]:
    whole = records[: len(records) - len(records) % abi.PROCESS_BYTES]
    for number, record in enumerate(abi.PROCESS.iter_unpack(whole)):
        pid, shares, starttime, denied, denied_bytes = record
        if pid:
            held = tuple(of_card.use_of(number) for of_card in arrays)
            denied, denied_bytes = min(denied, _MOST_DENIED), min(denied_bytes, _MOST_BYTES)
            yield ProcessClaim(number, pid, bool(shares), starttime, denied, denied_bytes, held)


def _read_arrays(fd: int, card: int, count: int) -> _CardArrays:
    """Return the arrays of one card for its first `count` processes."""
    base = abi.status_usage_offset(card)
    return _CardArrays(
        # Imports before exports: what is freed must not look like an orphan in between.
        imported=os.pread(fd, count * _WORD, base + abi.USAGE_IMPORTED),
        held=os.pread(fd, count * _WORD, base + abi.USAGE_HELD),
        exported=os.pread(fd, count * _WORD, base + abi.USAGE_EXPORTED),
        details=os.pread(fd, count * abi.DETAIL_BYTES, base + abi.USAGE_DETAIL),
    )


class _CardArrays(NamedTuple):
    """The arrays of one card, as far as they are used; short where the tenant broke the file."""

    imported: bytes
    held: bytes
    exported: bytes
    details: bytes

    def use_of(self, number: int) -> MemoryUse:
        """Return what process `number` holds; nothing where the file ends before it."""
        detail = self.details[number * abi.DETAIL_BYTES : (number + 1) * abi.DETAIL_BYTES]
        if len(detail) < abi.DETAIL_BYTES:
            return _NOTHING
        imported, held, exported = (_word(array, number) for array in self[:3])
        if detail == _NO_DETAIL and not (imported or held or exported):
            return _NOTHING  # most processes use one card of a tenant's
        *kinds, kept, contexts = abi.DETAIL.unpack(detail)
        kinds = [min(size, _MOST_BYTES) for size in kinds]
        kinds[abi.KIND_BUFFER] = max(0, held - sum(kinds[abi.KIND_BUFFER + 1 :]))
        return MemoryUse(
            held_bytes=held,
            kinds=tuple(kinds),
            contexts=min(contexts, _MOST_CONTEXTS),
            pool_kept_bytes=min(kept, _MOST_BYTES),
            exported_bytes=exported,
            imported_bytes=imported,
        )


def _word(array: bytes, number: int) -> int:
    word = array[number * _WORD : (number + 1) * _WORD]
    return min(int.from_bytes(word, "little"), _MOST_BYTES)
