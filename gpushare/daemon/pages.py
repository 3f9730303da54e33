# SPDX-License-Identifier: Apache-2.0
"""The two files that daemon and tenant share, as libhook/include/gpushare_abi.h lays them out.

`Grant` is ours to write: it is mapped, and each store is one aligned machine word, so that a tenant
never reads half of one. `Status` is the tenant's and may say anything, or be truncated under us: it
is read with pread and never mapped, and every number in it is a claim.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import abi

_FUTEX_WAKE: Final = 1
_ALL: Final = 0x7FFFFFFF
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock, fcntl(2)
_F_OFD_GETLK: Final = 36
_F_OFD_SETLK: Final = 37

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

#: What a tenant's files may take: both of them, and nothing else.
SIZE_BYTES: Final = abi.GRANT_BYTES + abi.STATUS_BYTES


@dataclass(frozen=True)
class Granted:
    """What a tenant has of one card, for its grant page."""

    uuid: str
    memory_bytes: int
    context_bytes: int
    cores: int


class Grant:
    """A tenant's grant file, mapped. One thread changes promises, one the measured fields."""

    def __init__(self, directory: int) -> None:
        fd = os.open(abi.GRANT_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            self._map = mmap.mmap(fd, abi.GRANT_BYTES)
        finally:
            os.close(fd)
        self._generation = ctypes.c_uint32.from_buffer(self._map, abi.GRANT_HEADER_GENERATION)

    @classmethod
    def make(cls, directory: int, key: str, cards: Sequence[Granted]) -> Grant:
        """Write a new grant file in the directory open at `directory`."""
        assert len(cards) <= abi.MAX_CARDS
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(abi.GRANT_NAME, flags, 0o644, dir_fd=directory)
        try:
            os.fchmod(fd, 0o644)
            os.ftruncate(fd, abi.GRANT_BYTES)
        finally:
            os.close(fd)
        grant = cls(directory)
        # Every page that will ever be written is written now: a tenant can fill its tmpfs later,
        # and a store into a page that has no memory then would end the daemon (SIGBUS).
        grant._write_header(key, len(cards))
        for number, card in enumerate(cards):
            grant._write_card(number, card)
        grant.publish()
        return grant

    @property
    def generation(self) -> int:
        """How often a promise was changed."""
        return self._generation.value

    @property
    def card_count(self) -> int:
        """How many cards the tenant has."""
        return self._u32(abi.GRANT_HEADER_CARD_COUNT).value

    def context_bytes(self, number: int) -> int:
        """Return what one context takes of card `number`, as the tenant was told."""
        return self._card64(number, abi.GRANT_CARD_CONTEXT_BYTES).value

    def overhead_bytes(self, number: int) -> int:
        """Return what the driver was found to use beside the tenant's own account."""
        return self._card64(number, abi.GRANT_CARD_OVERHEAD_BYTES).value

    def set_memory(self, number: int, memory_bytes: int) -> None:
        """Change the quota of card `number`; `publish` makes waiting tenants look."""
        # A tenant that reads between the two stores must not find a limit below its quota.
        limit = self._card64(number, abi.GRANT_CARD_MEMORY_LIMIT_BYTES)
        memory = self._card64(number, abi.GRANT_CARD_MEMORY_BYTES)
        for field in (limit, memory) if memory_bytes > memory.value else (memory, limit):
            field.value = memory_bytes

    def set_context(self, number: int, context_bytes: int) -> None:
        """Say what one context takes of card `number`."""
        self._card64(number, abi.GRANT_CARD_CONTEXT_BYTES).value = context_bytes

    def set_measured(self, number: int, overhead_bytes: int, utilisation: int) -> None:
        """Say what the driver reports: bytes beside the tenant's account, percent of the card."""
        self._card64(number, abi.GRANT_CARD_OVERHEAD_BYTES).value = overhead_bytes
        offset = abi.grant_card_offset(number) + abi.GRANT_CARD_UTILISATION_PERCENT
        self._u32(offset).value = utilisation

    def beat(self) -> None:
        """Say that the daemon has looked."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._u64(abi.GRANT_HEADER_HEARTBEAT_NS).value = now

    def publish(self) -> None:
        """Count the generation up and wake whoever waits for it."""
        self._generation.value += 1
        _libc.syscall(
            *(ctypes.c_long(_SYS_FUTEX), ctypes.byref(self._generation)),
            *(ctypes.c_int(_FUTEX_WAKE), ctypes.c_int(_ALL), None, None, ctypes.c_int(0)),
        )

    def _write_header(self, key: str, card_count: int) -> None:
        self._u64(abi.GRANT_HEADER_MAGIC).value = abi.ABI_MAGIC
        self._u32(abi.GRANT_HEADER_ABI_VERSION).value = abi.ABI_VERSION
        self._u32(abi.GRANT_HEADER_CARD_COUNT).value = card_count
        self._text(abi.GRANT_HEADER_KEY, abi.GRANT_HEADER_KEY_BYTES, key)
        self.beat()

    def _write_card(self, number: int, card: Granted) -> None:
        offset = abi.grant_card_offset(number)
        self._text(offset + abi.GRANT_CARD_UUID, abi.GRANT_CARD_UUID_BYTES, card.uuid)
        self.set_memory(number, card.memory_bytes)
        self.set_context(number, card.context_bytes)
        self._u32(offset + abi.GRANT_CARD_CORES_PERCENT).value = card.cores
        self._u32(offset + abi.GRANT_CARD_GATE_MODE).value = abi.GATE_OPEN

    def _text(self, offset: int, size: int, text: str) -> None:
        encoded = text.encode("ascii")
        if len(encoded) >= size:
            raise ValueError(f"{text} is longer than the {size - 1} bytes of its place")
        self._map[offset : offset + size] = encoded.ljust(size, b"\0")

    def _card64(self, number: int, field: int) -> ctypes.c_uint64:
        return self._u64(abi.grant_card_offset(number) + field)

    def _u64(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_buffer(self._map, offset)

    def _u32(self, offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self._map, offset)


@dataclass(frozen=True)
class Held:
    """What one process says that it holds on one card, or all processes together.

    `kinds` has bytes by `abi.KIND_...`; `held_bytes` is all of them and what is pending.
    """

    held_bytes: int = 0
    kinds: tuple[int, ...] = (0,) * abi.KINDS
    contexts: int = 0
    pool_kept_bytes: int = 0
    exported_bytes: int = 0
    imported_bytes: int = 0


@dataclass(frozen=True)
class Claim:
    """What one process says of itself: `held` by card number."""

    number: int
    pid: int  # in its own pid namespace
    starttime: int
    denied: int
    denied_bytes: int  # what the last refused allocation asked for
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Account(Held):
    """What a tenant's processes say that they hold of one card; `imported_bytes` is the most."""

    @property
    def orphaned_bytes(self) -> int:
        """What outlived the process that made it: somebody maps more than all answer for."""
        return max(0, self.imported_bytes - self.exported_bytes)

    @property
    def told_bytes(self) -> int:
        """What the driver should have of it: all but managed memory, which it counts for nobody."""
        return max(0, self.held_bytes - self.kinds[abi.KIND_MANAGED]) + self.orphaned_bytes

    def used_bytes(self, overhead_bytes: int) -> int:
        """Return all that counts against the quota, as gpushare_abi.h has it."""
        return self.held_bytes + overhead_bytes + self.orphaned_bytes


def accounts(claims: Iterable[Claim], cards: int) -> tuple[Account, ...]:
    """Return the sums of `claims` for each of `cards`."""
    claims = tuple(claims)
    return tuple(_account([claim.held[number] for claim in claims]) for number in range(cards))


def _account(held: Sequence[Held]) -> Account:
    return Account(
        held_bytes=sum(one.held_bytes for one in held),
        kinds=tuple(sum(one.kinds[kind] for one in held) for kind in range(abi.KINDS)),
        contexts=sum(one.contexts for one in held),
        pool_kept_bytes=sum(one.pool_kept_bytes for one in held),
        exported_bytes=sum(one.exported_bytes for one in held),
        imported_bytes=max((one.imported_bytes for one in held), default=0),
    )


class Status:
    """A tenant's status file, by descriptor."""

    def __init__(self, directory: int) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self.fd = os.open(abi.STATUS_NAME, flags, dir_fd=directory)

    @classmethod
    def make(cls, directory: int, *, owner: int | None = None) -> Status:
        """Write a new status file; anybody may write it, or only `owner` where one is given."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(abi.STATUS_NAME, flags, 0o600, dir_fd=directory)
        try:
            if owner is None:
                os.fchmod(fd, 0o666)
            else:
                os.fchown(fd, owner, -1)
            os.ftruncate(fd, abi.STATUS_BYTES)
            os.pwrite(fd, abi.STATUS_HEADER.pack(abi.ABI_MAGIC, abi.ABI_VERSION, 0, 0, 0), 0)
        finally:
            os.close(fd)
        return cls(directory)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def claims(self, cards: int) -> list[Claim]:
        """Return what each registered process claims; fewer where the tenant broke the file."""
        header = os.pread(self.fd, abi.STATUS_HEADER_BYTES, 0)
        if len(header) < abi.STATUS_HEADER_BYTES:
            return []
        high_water = min(abi.STATUS_HEADER.unpack(header)[2], abi.MAX_PROCESSES)
        records = os.pread(self.fd, high_water * abi.PROCESS_BYTES, abi.STATUS_PROCESS_OFFSET)
        usages = [_Usage.read(self.fd, card, high_water) for card in range(cards)]
        found: list[Claim] = []
        for number in range(len(records) // abi.PROCESS_BYTES):
            pid, _, starttime, denied, denied_bytes = abi.PROCESS.unpack_from(
                records, number * abi.PROCESS_BYTES
            )
            if pid:
                held = tuple(usage.of(number) for usage in usages)
                found.append(Claim(number, pid, starttime, denied, denied_bytes, held))
        return found

    def reap(self, is_alive: Callable[[int, int], bool], cards: int) -> int:
        """Free the records of processes that are dead, and return how many there were.

        `is_alive` is asked with (pid, starttime) as the process has them. Nothing is done while a
        process of the tenant holds the page's lock: we never wait for a tenant.
        """
        dead = [
            claim
            for claim in self.claims(cards)
            if not is_alive(claim.pid, claim.starttime) and not self._is_locked(claim.number)
        ]
        if not dead or not self._lock(0):
            return 0
        try:
            # Once more, now that nobody else reaps: the record may be another process's by now.
            now = {claim.number: claim for claim in self.claims(cards)}
            dead = [
                claim
                for claim in dead
                if (again := now.get(claim.number)) is not None
                and (again.pid, again.starttime) == (claim.pid, claim.starttime)
                and not self._is_locked(claim.number)
            ]
            for claim in dead:
                self._clear(claim.number, cards)
        finally:
            self._unlock(0)
        return len(dead)

    def is_held(self) -> bool:
        """Whether a registered process holds the lock on its record."""
        return any(self._is_locked(claim.number) for claim in self.claims(0))

    def _clear(self, number: int, cards: int) -> None:
        """Free a record: what it held first, or a new owner would inherit it."""
        for card in range(cards):
            _Usage.clear(self.fd, card, number)
        record = abi.status_process_offset(number)
        os.pwrite(self.fd, bytes(abi.PROCESS_BYTES - 8), record + 8)
        os.pwrite(self.fd, bytes(8), record)

    def _is_locked(self, number: int) -> bool:
        """Whether a process holds its record's lock (an OFD lock: it ends with the process)."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, abi.status_process_offset(number), 1, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(self.fd, _F_OFD_GETLK, asked))
        return bool(answer[0] != fcntl.F_UNLCK)

    def _lock(self, offset: int) -> bool:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        try:
            fcntl.fcntl(self.fd, _F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            return False
        return True

    def _unlock(self, offset: int) -> None:
        fcntl.fcntl(self.fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0))


_WORD: Final = 8
# Imports before exports: what is freed must not look like an orphan in between.
_WORDS: Final = (abi.USAGE_IMPORTED, abi.USAGE_HELD, abi.USAGE_PENDING, abi.USAGE_EXPORTED)


@dataclass(frozen=True)
class _Usage:
    """The arrays of one card, as far as they are used; short where the tenant broke the file."""

    words: Mapping[int, bytes]  # by USAGE_...
    details: bytes

    @classmethod
    def read(cls, fd: int, card: int, count: int) -> _Usage:
        base = abi.status_usage_offset(card)
        words = {field: os.pread(fd, count * _WORD, base + field) for field in _WORDS}
        return cls(words, os.pread(fd, count * abi.DETAIL_BYTES, base + abi.USAGE_DETAIL))

    @staticmethod
    def clear(fd: int, card: int, number: int) -> None:
        base = abi.status_usage_offset(card)
        for field in _WORDS:
            os.pwrite(fd, bytes(_WORD), base + field + number * _WORD)
        detail = base + abi.USAGE_DETAIL + number * abi.DETAIL_BYTES
        os.pwrite(fd, bytes(abi.DETAIL_BYTES), detail)

    def of(self, number: int) -> Held:
        """Return what process `number` holds; nothing where the file ends before it."""
        if len(self.details) < (number + 1) * abi.DETAIL_BYTES:
            return Held()
        *kinds, kept, contexts = abi.DETAIL.unpack_from(self.details, number * abi.DETAIL_BYTES)
        held = self._word(abi.USAGE_HELD, number)
        kinds[abi.KIND_BUFFER] = max(0, held - sum(kinds[abi.KIND_BUFFER + 1 :]))
        return Held(
            held_bytes=held,
            kinds=tuple(kinds),
            contexts=contexts,
            pool_kept_bytes=kept,
            exported_bytes=self._word(abi.USAGE_EXPORTED, number),
            imported_bytes=self._word(abi.USAGE_IMPORTED, number),
        )

    def _word(self, field: int, number: int) -> int:
        return int.from_bytes(self.words[field][number * _WORD : (number + 1) * _WORD], "little")
