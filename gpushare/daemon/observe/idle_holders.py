# SPDX-License-Identifier: Apache-2.0
"""Finds the containers that hold GPU memory and have not used their cards for `idle.after`.

It reads the samples that exist. The time begins again when the container uses a card, when it holds
no memory, when gpushared starts, and when a pause or freeze ends; a container whose use of a card
is not known is not idle.

Durations are of the monotonic clock, without suspend: a time of day that is set ends no container.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpushare.daemon.core.log import log
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError

#: Pauses or stops a tenant, for a reason; a UserError says why it could not.
Act = Callable[[TenantRecord, str], None]


@dataclass(frozen=True)
class _Holding:
    """Memory that is held without work, since `began` (monotonic) or `since` (epoch), in seconds.

    `active` is when the tenant was last seen to work, as it is shown.
    """

    active: float
    began: float
    since: float


class IdleHolders:
    """Judges the tenants of `state`, all on one thread; `actions` are called by the freeze thread.

    `actions` has what `pause` and `kick` do.
    """

    def __init__(self, state: DaemonState, actions: Mapping[str, Act]) -> None:
        self._state = state
        self._actions = actions
        self._holdings: dict[str, _Holding] = {}  # by key

    def look(self) -> None:
        """Judge all tenants."""
        state = self._state
        if state.observed.usage.stale:
            return
        now = time.monotonic()
        before = state.observed.idle
        holdings: dict[str, _Holding] = {}
        idle: dict[str, float] = {}
        for record in state.ledger.entries.values():
            holding = self._holding(record, now)
            if holding is None:
                continue
            holdings[record.key] = holding
            policy = state.node.config.terms_of(record.namespace).idle
            after = policy.of_container(record.quota).after_seconds
            if after is not None and now - holding.began >= after:
                idle[record.key] = holding.since
                if record.key not in before:
                    self._act(record, now - holding.began)
        self._holdings = holdings
        state.observed.idle = MappingProxyType(idle)

    def _holding(self, record: TenantRecord, now: float) -> _Holding | None:
        """Return since when a tenant holds memory and uses no card; None: it does not."""
        state = self._state
        if record.state != "bound" or state.ledger.freezes.of(record.key):
            return None
        uses = [state.observed.compute_of(record.key, one.uuid) for one in record.allocations]
        if not uses or not all(use.source for use in uses) or not self._held_bytes(record):
            return None
        active = max(use.last_active for use in uses)
        before = self._holdings.get(record.key)
        if before is not None and before.active == active:
            return before
        return _Holding(active, now, time.time())

    def _held_bytes(self, record: TenantRecord) -> int:
        usage = self._state.observed.usage
        return sum(usage.driver_bytes(record.key, one.uuid) for one in record.allocations)

    def _act(self, record: TenantRecord, seconds: float) -> None:
        action = self._state.node.config.terms_of(record.namespace).idle.action
        figures = {
            "tenant": record.key,
            "id": record.id,
            "name": record.title,
            "used_bytes": self._held_bytes(record),
            "idle_seconds": int(seconds),
            "action": action,
        }
        if action in {"report", "evict"}:  # an eviction does no harm
            log("tenant-idle-detected", "info", **figures)
        else:
            log("tenant-idle-warned", "warning", **figures)
        if (act := self._actions.get(action)) is not None:
            why = f"idle for {int(seconds)} s (idle.action: {action})"
            self._state.freezing.submit(lambda: _run(act, record, why, action))


def _run(act: Act, record: TenantRecord, why: str, action: str) -> None:
    try:
        act(record, why)
    except UserError as error:
        log(
            "tenant-idle-action-failed",
            "error",
            tenant=record.key,
            id=record.id,
            name=record.title,
            action=action,
            error=str(error),
        )
