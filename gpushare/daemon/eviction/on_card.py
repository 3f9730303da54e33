# SPDX-License-Identifier: Apache-2.0
"""Evicted tenants whose memory the driver lists: it should be none."""

from __future__ import annotations

from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.steps import identity
from gpushare.daemon.state import DaemonState

_SEEN_TIMES: Final = 2  # samples in a row: one may be older than the eviction


class OnCardWatch:
    """Looks at the samples of `state`; the truth thread's."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._seen: dict[str, int] = {}  # in how many samples in a row, by key

    def look(self) -> None:
        """Report evicted tenants with memory on a card, once each."""
        usage = self._state.observed.usage
        if usage.stale:
            return
        seen = {}
        for record in self._state.ledger.entries.values():
            if not record.is_off_card:
                continue
            used = sum(use.bytes or 0 for _, use in usage.processes.get(record.key, ()))
            if not used:
                continue
            seen[record.key] = self._seen.get(record.key, 0) + 1
            if seen[record.key] == _SEEN_TIMES:
                log("tenant-evicted-on-card", "error", **identity(record), used_bytes=used)
        self._seen = seen
