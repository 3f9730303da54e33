# SPDX-License-Identifier: Apache-2.0
"""A request that has no room has others evicted first, where the configuration allows it."""

from __future__ import annotations

from collections.abc import Callable

from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import START_SECONDS


def reserve_again(
    error: NoRoom,
    about: tuple[str, bool],
    reserve: Callable[[], TenantRecord],
    waits: Callable[[float], None],
    state: DaemonState,
) -> TenantRecord:
    """Return what `reserve` does once others are evicted for it; NoRoom: `error`, or a new one.

    `about` is the name of the container, and whether it is of class online. `waits` is called
    before, and with 0 after: an eviction takes seconds. Never on the decide thread.
    """
    name, is_online = about
    if state.evict_for is None or error.request is None:
        raise error
    waits(START_SECONDS)
    try:
        record = state.evict_for(error.request, is_online, f"{name} had no room", reserve)
    finally:
        waits(0)
    if record is None:
        raise error
    return record
