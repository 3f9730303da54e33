# SPDX-License-Identifier: Apache-2.0
"""What processes of no tenant hold of a card.

One is foreign once it was seen in two looks, and never while it is one that a tenant, or the
daemon, has just left behind.
"""

from __future__ import annotations

import threading
from typing import Final

from gpushare.daemon.audit.view import CardTruth
from gpushare.daemon.cards.capacity import Foreign, HighWater
from gpushare.daemon.cards.card import Use
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.containers import container_of

_GRACE_SECONDS: Final = 10.0  # a process that was a tenant's may take this long to leave the card


class ForeignUse:
    """Which processes of a card belong to no tenant, over time."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._marks: dict[str, HighWater] = {}
        self._suspects: dict[str, frozenset[int]] = {}
        self._known: dict[int, float] = {}  # pid of a tenant or ours -> when last seen as such
        self._lock = threading.Lock()  # of _known: the probe is excused by the thread that runs it

    def excuse(self, pid: int, now: float) -> None:
        """Note that `pid` is a tenant's, or the daemon's own. Any thread may."""
        with self._lock:
            self._known[pid] = now

    def observe(
        self, now: float, card: str, strangers: tuple[Use, ...], *, first: bool
    ) -> CardTruth:
        """Return the card's foreign use after `strangers` were seen at `now`.

        At the `first` look they count at once: whoever was there before the daemon is foreign.
        """
        with self._lock:
            self._known = {
                pid: seen for pid, seen in self._known.items() if now - seen < _GRACE_SECONDS
            }
            unexcused = [use for use in strangers if use.pid not in self._known]
        before = self._suspects.get(card, frozenset())
        self._suspects[card] = frozenset(use.pid for use in unexcused)
        foreign = tuple(
            Foreign(
                use.pid,
                processes.name_of(use.pid),
                use.bytes,
                container_of(processes.cgroups_of(use.pid)),
            )
            for use in unexcused
            if use.bytes and (first or use.pid in before)
        )
        mark = self._marks.setdefault(card, HighWater(self._half_life))
        return CardTruth(foreign, mark.observe(now, sum(process.bytes for process in foreign)))
