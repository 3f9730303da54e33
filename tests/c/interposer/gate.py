# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of a tenant's gate, and what the tenant says of its work."""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gpushare import abi

from .tenant import InterposedTenant

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
#: Longer than a test waits for anything: a wait that ends by itself would look like a gate that let
#: something pass.
WAIT_MAX_NS: Final = 60 * SECOND
#: A heartbeat that is never old.
ALWAYS: Final = 1 << 62
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_syscall = ctypes.CDLL(None).syscall


def wake(word: ctypes.c_uint32) -> None:
    """Wake all that wait for a futex word of a page."""
    _syscall(ctypes.c_long(_SYS_FUTEX), ctypes.byref(word), _FUTEX_WAKE, 0x7FFFFFFF, None)


def wait(word: ctypes.c_uint32, value: int) -> int:
    """Wait for the word while it has this value; return 0 if woken."""
    futex = ctypes.c_long(_SYS_FUTEX), ctypes.byref(word)
    return int(_syscall(*futex, _FUTEX_WAIT, ctypes.c_uint32(value), None))


class StatusWork(NamedTuple):
    """What a process has on a card, as it stands in the status page."""

    done: int
    waiting: int
    busy_ns: int
    since_ns: int
    pending_ns: int
    submitted: int
    ended: int
    throttled_ns: int
    forced: int
    begun: int


class WrittenGate:
    """One card's gate, written as a scheduler that never dies would."""

    def __init__(self, tenant: InterposedTenant, card: int = 0) -> None:
        self._tenant = tenant
        self._card = card
        with tenant.grant.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), abi.GRANT_BYTES)
        self._offset = abi.gate_offset(card)
        self._set64(abi.GATE_HEARTBEAT_NS, ALWAYS)
        self._set64(abi.GATE_WAIT_MAX_NS, WAIT_MAX_NS)
        self._set64(abi.GATE_TIMING_INTERVAL_NS, MILLISECOND // 2)
        self._set64(abi.GATE_IN_FLIGHT_MAX_NS, 2 * MILLISECOND)
        self._set32(abi.GATE_PIECES_MIN, 1)

    def set(self, mode: int) -> None:
        """Open, close or bound it, and wake its waiters."""
        self._set32(abi.GATE_MODE, mode)
        epoch = self._at32(abi.GATE_EPOCH)
        epoch.value += 1
        wake(epoch)

    def bound(self, in_flight_max_ns: int) -> None:
        """Let so much be pending in a window."""
        self._set64(abi.GATE_IN_FLIGHT_MAX_NS, in_flight_max_ns)

    def work(self, process: int = 0) -> StatusWork:
        """Return one process's work as it was between two changes of it."""
        offset = abi.status_work_offset(self._card, process)
        while True:
            with self._tenant.status.open("rb") as file:
                file.seek(offset)
                work = StatusWork(*abi.WORK.unpack(file.read(abi.WORK_BYTES)))
            if work.begun == work.done:
                return work

    def until(self, holds: Callable[[StatusWork], bool], process: int = 0) -> StatusWork:
        """Return a process's work once it is so; what never comes fails."""
        deadline = time.monotonic() + 30
        while not holds(work := self.work(process)):
            assert time.monotonic() < deadline, work
            time.sleep(0.0005)
        return work

    def _at32(self, field: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self._map, self._offset + field)

    def _set32(self, field: int, value: int) -> None:
        self._at32(field).value = value

    def _set64(self, field: int, value: int) -> None:
        ctypes.c_uint64.from_buffer(self._map, self._offset + field).value = value
