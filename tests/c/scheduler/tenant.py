# SPDX-License-Identifier: Apache-2.0
"""A tenant as the scheduler sees it: its pages, the claims of its processes, its wake-ups."""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare import abi
from gpushare.daemon import scheduler_sync as schedule_message
from gpushare.daemon.pages.tenants import CardGrant, Pages
from gpushare.daemon.policy import Share
from gpushare.daemon.scheduler_sync import Scheduler

HALF: Final = Share(500, capped=False, online=False, priority=0)


def now() -> int:
    """Return the time of the pages, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@dataclass
class ScheduledTenant:
    """Pages in a directory of their own, on `uuids`."""

    key: str
    uuids: tuple[str, ...]
    place: Path
    pages: Pages
    _changes: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, uuids: Sequence[str]) -> ScheduledTenant:
        """Make the pages beneath `folder`."""
        key = secrets.token_hex(8)
        place = folder / key
        place.mkdir()
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        granted = [CardGrant(uuid, 1 << 30, 0, 50) for uuid in uuids]
        return cls(key, tuple(uuids), place, Pages.make(directory, key, granted))

    def added_to(self, scheduler: Scheduler, share: Share = HALF) -> int:
        """Name it to the scheduler, and return the errno that it answers."""
        parts = [(uuid, share) for uuid in self.uuids]
        return scheduler.send(
            schedule_message.message(schedule_message.TENANT, self.key, parts),
            [self.pages.directory],
        ).error

    def say(
        self,
        number: int = 0,
        *,
        card: int = 0,
        waiting: int = 0,
        busy_ns: int = 0,
        since_ns: int = 0,
        pending_ns: int = 0,
        submitted: int = 0,
        ended: int = 0,
    ) -> None:
        """Write the work of process `number`, and wake the scheduler."""
        change = self._changes[card, number] = self._changes.get((card, number), 0) + 1
        record = abi.WORK.pack(
            change, waiting, busy_ns, since_ns, pending_ns, submitted, ended, 0, 0, change
        )
        status = self.pages.status.fd
        os.pwrite(status, record, abi.status_work_offset(card, number))
        high_water = struct.unpack("<I", os.pread(status, 4, abi.STATUS_HEADER_HIGH_WATER))[0]
        if high_water <= number:
            os.pwrite(status, struct.pack("<I", number + 1), abi.STATUS_HEADER_HIGH_WATER)
        self.wake()

    def wake(self, times: int = 1) -> None:
        """Send wake-ups, like a process that does not check whether they are read."""
        fd = os.open(self.place / abi.WAKEUP_NAME, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(fd, bytes(times))
        except BlockingIOError:
            pass  # full: whoever reads it will look
        finally:
            os.close(fd)

    def gate(self, offset: int, card: int = 0, *, wide: bool = True) -> int:
        """Return what stands at `offset` (abi.GATE_...) of the gate of a card."""
        with (self.place / abi.GRANT_NAME).open("rb") as file:
            read = os.pread(file.fileno(), 8 if wide else 4, abi.gate_offset(card) + offset)
        return int.from_bytes(read, "little")

    def mode(self, card: int = 0) -> int:
        """Return the gate's mode (abi.GATE_OPEN ...)."""
        return self.gate(abi.GATE_MODE, card, wide=False)
