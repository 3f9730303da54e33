# SPDX-License-Identifier: Apache-2.0
"""How a start that has no room gets some: others are evicted for it, or it waits in the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.lifecycle.queue import Queue
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.protocol import START_SECONDS


def lacks_room(error: UserError) -> bool:
    """Whether a request was refused for want of room."""
    return isinstance(error, NoRoom) or isinstance(error.__cause__, NoRoom)


@dataclass(frozen=True)
class RoomForStarts:
    """What can make room for a start, as far as the configuration allows it."""

    evictions: Evictions
    queue: Queue

    def reserve_again(
        self,
        error: NoRoom,
        about: tuple[str, bool],
        reserve: Callable[[], TenantRecord],
        waits: Callable[[float], None],
    ) -> TenantRecord:
        """Return what `reserve` does once others are evicted for it; NoRoom: `error`, or a new one.

        `about` is the name of the container, and whether it is of class online. `waits` is called
        before, and with 0 after: an eviction takes seconds. Never on the decide thread.
        """
        name, is_online = about
        if error.request is None:
            raise error
        waits(START_SECONDS)
        try:
            record = self.evictions.evict_for(
                error.request, is_online, f"{name} had no room", reserve
            )
        finally:
            waits(0)
        if record is None:
            raise error
        return record
