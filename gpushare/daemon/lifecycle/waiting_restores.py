# SPDX-License-Identifier: Apache-2.0
"""Evicted containers that wait for their restore, as requests of the queue.

A program that blocks in a CUDA call until its memory is back waits for room as a start does. It has
the same order. Its place is not recorded: its call asks the next gpushared again. The decide
thread's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpushare.daemon.eviction.targets import restore_request
from gpushare.daemon.placement.waiting import WaitingRequest
from gpushare.daemon.state import DaemonState


class WaitingRestores:
    """The places of the waiting containers of `state` in the queue, by key."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._numbers: dict[str, int] = {}

    @property
    def last(self) -> int:
        """The highest number that a container has; 0: none waits."""
        return max(self._numbers.values(), default=0)

    def requests(self, number: int) -> Iterator[WaitingRequest]:
        """Yield the requests of those for which nothing but room is missing.

        `number` is that of the next arrival.
        """
        state = self._state
        waiting, records = state.observed.waiting, state.ledger.entries
        self._numbers = {key: own for key, own in self._numbers.items() if key in waiting}
        for key, since in waiting.items():
            if key not in self._numbers:
                self._numbers[key] = number
                number += 1
            record = records.get(key)
            if record is None or not record.is_off_card or record.eviction is None:
                continue
            if record.eviction.held or state.is_frozen(key) or key in state.observed.restore_faults:
                continue
            found = restore_request(record, state)
            yield WaitingRequest(
                ticket=key,
                request=replace(found, rank=(*found.rank[:2], self._numbers[key])),
                since=since,
                container=record.title,
            )
