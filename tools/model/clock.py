# SPDX-License-Identifier: Apache-2.0
"""Simulated time: what happens next."""

import heapq
from collections.abc import Callable
from typing import Any

US = 1000
MS = 1000 * US
SECOND = 1000 * MS


class Clock:
    """Calls what was put down for a time, in the order of times; times are nanoseconds."""

    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call at `when`; of one time, in the order in which they were put down."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, call, arguments))

    def run(self, until: int) -> None:
        """Let time pass until `until`."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(events)
            call(*arguments)
        self.now = until
