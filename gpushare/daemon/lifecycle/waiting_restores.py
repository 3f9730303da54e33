# SPDX-License-Identifier: Apache-2.0
"""Evicted containers that wait for their restore, as requests of the queue.

A program that blocks in a CUDA call until its memory is back waits for room as a start does. It has
the same order and the same bound of overtaking. How often it was overtaken is not recorded: its
call asks the next gpushared again, and the count begins again. The decide thread's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.eviction.targets import restore_request
from gpushare.daemon.placement.waiting import WaitingRequest
from gpushare.daemon.state import DaemonState


@dataclass(frozen=True)
class _Place:
    number: int
    overtaken: int = 0
    first_overtaken: float = 0.0


class WaitingRestores:
    """The places of the waiting containers of `state` in the queue, by key."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._places: dict[str, _Place] = {}

    @property
    def last(self) -> int:
        """The highest number that a container has; 0: none waits."""
        return max((one.number for one in self._places.values()), default=0)

    def number(self, key: str) -> int:
        """Return the number of a waiting container, 0 if it does not wait."""
        place = self._places.get(key)
        return 0 if place is None else place.number

    def requests(self, number: int) -> Iterator[WaitingRequest]:
        """Yield the requests of those for which nothing but room is missing.

        `number` is that of the next arrival.
        """
        state = self._state
        waiting, records = state.observed.waiting, state.ledger.entries
        self._places = {key: place for key, place in self._places.items() if key in waiting}
        for key, since in waiting.items():
            if key not in self._places:
                self._places[key] = _Place(number)
                number += 1
            record, place = records.get(key), self._places[key]
            if record is None or not record.is_off_card or record.eviction is None:
                continue
            if record.eviction.held or state.is_frozen(key) or key in state.observed.restore_faults:
                continue
            is_online = record.class_ == "online"
            yield WaitingRequest(
                ticket=key,
                number=place.number,
                request=restore_request(record, state),
                priority=record.priority,
                since=since,
                overtaken=place.overtaken,
                first_overtaken=place.first_overtaken,
                container=record.title,
                is_online=is_online,
                yields=not is_online and state.config.evict.offline,
            )

    def count_overtaking(self, key: str) -> None:
        """Note that another has got a card that this one could have used."""
        if (place := self._places.get(key)) is not None:
            first = place.first_overtaken or boottime()
            self._places[key] = replace(place, overtaken=place.overtaken + 1, first_overtaken=first)
