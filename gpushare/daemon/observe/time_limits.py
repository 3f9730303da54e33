# SPDX-License-Identifier: Apache-2.0
"""Acts on containers whose time is over: `time-limit`, counted from the reservation; `idle.after`.

Times of limits are of CLOCK_BOOTTIME, so a clock that is set ends no container, and a restart of
gpushared changes none of them. A warning comes before: five minutes, or a tenth of the limit if
that is less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Worker, boottime
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.quota.keys import exact_duration, parse_duration
from gpushare.quota.request import TIME_LIMIT

#: Pauses or stops a tenant, for a reason; a UserError says why it could not.
Act = Callable[[TenantRecord, str], None]

LOOK_SECONDS: Final = 1.0
_WARNING_SECONDS: Final = 300


def limit_seconds(record: TenantRecord) -> int | None:
    """Return the time limit of a tenant, None if it has none."""
    row = record.quota.get(TIME_LIMIT)
    return None if row is None or not record.since else parse_duration(row["value"])


def seconds_left(record: TenantRecord) -> float | None:
    """Return how long a tenant may still run, None if it has no limit."""
    limit = limit_seconds(record)
    return None if limit is None else record.since + limit - boottime()


def is_near(record: TenantRecord) -> bool:
    """Whether it is time to warn of the end."""
    limit, left = limit_seconds(record), seconds_left(record)
    return limit is not None and left is not None and left <= min(_WARNING_SECONDS, limit / 10)


def ends_at(record: TenantRecord) -> float | None:
    """Return when a tenant is stopped, in seconds since the epoch; None: it has no limit."""
    left = seconds_left(record)
    return None if left is None else time.time() + left


class TimeLimits:
    """Judges the tenants, all on one thread; `stop` is called by the `freezing` thread."""

    def __init__(self, ledger: Ledger, freezing: Worker, stop: Act) -> None:
        self._ledger, self._freezing, self._stop = ledger, freezing, stop
        self._warned: dict[str, int] = {}  # by key, the limit of which a warning was logged

    def look(self) -> None:
        """Judge all tenants."""
        records = self._ledger.entries
        self._warned = {key: limit for key, limit in self._warned.items() if key in records}
        for record in records.values():
            limit = limit_seconds(record)
            if limit is None or record.state != "bound" or self._is_stopping(record):
                continue
            left = seconds_left(record) or 0.0
            if left <= 0:
                why = f"its time limit of {exact_duration(limit)} is over"
                self._freezing.submit(partial(self._end, record, why))
            elif is_near(record) and self._warned.get(record.key) != limit:
                self._warned[record.key] = limit
                log(
                    "tenant-time-limit-near",
                    "warning",
                    **record.identity,
                    limit_seconds=limit,
                    left_seconds=round(left),
                    pod=record.of_pod,
                )

    def _is_stopping(self, record: TenantRecord) -> bool:
        return self._ledger.freezes.by(record.key, "stop") is not None

    def _end(self, record: TenantRecord, why: str) -> None:
        if self._is_stopping(record):
            return
        try:
            self._stop(record, why)
        except UserError as error:  # the next look tries it again
            log("tenant-time-limit-failed", "error", **record.identity, error=str(error))


@dataclass(frozen=True)
class _Holding:
    """Memory that is held without work."""

    active: float  # when the tenant was last seen to work, as it is shown
    began: float  # monotonic seconds
    since: float  # the same, of the epoch


class IdleHolders:
    """Finds the containers that hold GPU memory and have not used their cards for `idle.after`.

    The time begins again when the container uses a card, when it holds no memory, when gpushared
    starts, and when a pause or freeze ends; a container whose use of a card is not known is not
    idle. Durations are of the monotonic clock, without suspend: a time of day that is set ends no
    container. All on one thread; `actions`, what `pause` and `kick` do, are called by the freeze
    thread.
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
        uses = [state.observed.compute_of(record.key, part.uuid) for part in record.allocations]
        if not uses or not all(use.source for use in uses) or not self._held_bytes(record):
            return None
        active = max(use.last_active for use in uses)
        before = self._holdings.get(record.key)
        if before is not None and before.active == active:
            return before
        return _Holding(active, now, time.time())

    def _held_bytes(self, record: TenantRecord) -> int:
        usage = self._state.observed.usage
        return sum(usage.driver_bytes[record.key, part.uuid] for part in record.allocations)

    def _act(self, record: TenantRecord, seconds: float) -> None:
        action = self._state.node.config.terms_of(record.namespace).idle.action
        figures = {
            **record.identity,
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
        tenant = record.identity
        log("tenant-idle-action-failed", "error", **tenant, action=action, error=str(error))
