# SPDX-License-Identifier: Apache-2.0
"""Evicts tenants for a request, or for another tenant, that has no room; the evict thread's.

An idle tenant is evicted for any other where `idle.action` is evict, a tenant of class offline only
for one of class online, where `evict.offline` is on. One that was restored is left alone for
`evict.min_resident`, so that two that need the same room do not take turns without an end; one that
could not be evicted, for half a minute, or until a start asks that does not wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.preconditions import CannotEvict, why_not
from gpushare.daemon.eviction.steps import EvictionFailed, TenantEnded
from gpushare.daemon.eviction.targets import rank_of, why_no_room
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.placement.request import PlacementRequest
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError

#: Whether what needs room has it on these cards.
Fits: TypeAlias = Callable[[tuple[CardCapacity, ...]], bool]

_ROUNDS: Final = 4
_REFUSED_SECONDS: Final = 30


class RoomMaker:
    """Chooses whom to evict in `state`; `evict` is called with a key, the cause and the reason."""

    def __init__(self, state: DaemonState, evict: Callable[[str, str, str], object]) -> None:
        self._state = state
        self._evict = evict
        #: By key, when a tenant was restored last (monotonic).
        self.restored: dict[str, float] = {}
        #: Likewise, when it could not be evicted.
        self.refused: dict[str, float] = {}

    def candidates(self, *, is_online: bool, besides: str) -> list[EvictionCandidate]:
        """Return the tenants that may be evicted for another one."""
        state, now = self._state, time.monotonic()
        resident = state.node.config.evict.min_resident_seconds
        found = []
        for record in state.ledger.entries.values():
            restored, refused = self.restored.get(record.key), self.refused.get(record.key)
            if record.key == besides or (restored is not None and now - restored < resident):
                continue
            if refused is not None and now - refused < _REFUSED_SECONDS:
                continue
            idle = state.observed.idle.get(record.key)
            action = state.node.config.terms_of(record.namespace).idle.action
            size_bytes = sum(one.quota_bytes for one in record.allocations)
            if idle is not None and action == "evict":
                found.append(EvictionCandidate(record.key, "idle", idle, bytes=size_bytes))
            elif is_online and state.node.config.evict.offline and record.class_ == "offline":
                priority = record.priority
                found.append(
                    EvictionCandidate(record.key, "offline", 0.0, priority, bytes=size_bytes)
                )
        records = state.ledger.entries
        return [one for one in found if not why_not(records[one.key], state)]

    def burst_holder(self, uuid: str, *, besides: str) -> EvictionCandidate | None:
        """Return the tenant to evict that uses the most burst memory of a card, None for none."""
        capacities = self._state.decide.run(self._state.accounts.capacities)
        uses = (use for one in capacities if one.card.uuid == uuid for use in one.allocations)
        burst = {use.key: use.burst_used_bytes for use in uses if use.burst_used_bytes}
        found = [
            one for one in self.candidates(is_online=True, besides=besides) if one.key in burst
        ]
        return max(found, key=lambda one: burst[one.key], default=None)

    def make(
        self,
        fits: Fits,
        reason: str,
        *,
        is_online: bool,
        besides: str = "",
    ) -> bool:
        """Evict as many as are needed for what `fits`; whether it has room then."""
        state = self._state
        for _ in range(_ROUNDS):
            capacities = state.decide.run(state.accounts.capacities)
            if fits(capacities):
                return True
            candidates = self.candidates(is_online=is_online, besides=besides)
            chosen = chosen_evictions(candidates, capacities, lambda found: fits(tuple(found)))
            if not chosen:
                return False
            for one in chosen:
                try:
                    self._evict(one.key, one.cause, reason)
                except (CannotEvict, EvictionFailed, TenantEnded) as error:
                    self.refused[one.key] = time.monotonic()
                    log("eviction-refused", "info", tenant=one.key, reason=str(error))
        return False


def has_place(request: PlacementRequest, own: str, state: DaemonState) -> Fits:
    """Return whether `request` has a place on cards that are not withheld for others than `own`."""

    def fits(capacities: tuple[CardCapacity, ...]) -> bool:
        found = state.queue.open_to(own, capacities, request.rank)
        try:
            place_request(request, found, state.node.loaded().links)
        except UserError:
            return False
        return True

    return fits


def has_room_again(record: TenantRecord, state: DaemonState) -> Fits:
    """Return whether an evicted tenant has room on its own cards, as `has_place`."""

    def fits(capacities: tuple[CardCapacity, ...]) -> bool:
        found = state.queue.open_to(record.key, capacities, rank_of(record))
        by_uuid = {capacity.card.uuid: capacity for capacity in found}
        return all(
            allocation.uuid in by_uuid and not why_no_room(record, number, by_uuid[allocation.uuid])
            for number, allocation in enumerate(record.allocations)
        )

    return fits


# --- which tenants are evicted for it ---
#
# As few tenants as possible: first the idle ones, beginning with the one that has been idle the
# longest, then the offline ones, beginning with the least important.

Cause = Literal["idle", "offline"]


@dataclass(frozen=True)
class EvictionCandidate:
    """A tenant that may be evicted; `idle_since` is of the epoch, 0.0: it is not idle."""

    key: str
    cause: Cause
    idle_since: float = 0.0
    priority: int = 0  # 0 is the most important
    bytes: int = 0


def chosen_evictions(
    candidates: Sequence[EvictionCandidate],
    capacities: Sequence[CardCapacity],
    fits: Callable[[Sequence[CardCapacity]], bool],
) -> tuple[EvictionCandidate, ...]:
    """Return the tenants to evict so that `fits` holds of the cards without them; none: it cannot.

    One is added after another until it fits. Those that turn out not to be needed stay.
    """
    ordered = sorted(candidates, key=_order)
    taken: list[EvictionCandidate] = []
    for candidate in ordered:
        taken.append(candidate)
        if fits(_without(capacities, taken)):
            break
    else:
        return ()
    for candidate in list(taken):
        fewer = [one for one in taken if one is not candidate]
        if fewer and fits(_without(capacities, fewer)):
            taken = fewer
    return tuple(taken)


def _order(candidate: EvictionCandidate) -> tuple[object, ...]:
    is_busy = candidate.cause == "offline"
    return is_busy, candidate.idle_since, -candidate.priority, candidate.bytes, candidate.key


def _without(
    capacities: Sequence[CardCapacity], evicted: Sequence[EvictionCandidate]
) -> tuple[CardCapacity, ...]:
    keys = {one.key for one in evicted}
    return tuple(
        replace(
            capacity, allocations=tuple(use for use in capacity.allocations if use.key not in keys)
        )
        for capacity in capacities
    )
