# SPDX-License-Identifier: Apache-2.0
"""Stops containers whose time is over: `time-limit`, counted from the reservation.

Times are of CLOCK_BOOTTIME, so a clock that is set ends no container, and a restart of gpushared
changes none of them. A warning comes before: five minutes, or a tenth of the limit if that is less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.quota.request import TIME_LIMIT
from gpushare.quota.values import exact_duration, parse_duration

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
    """Judges the tenants of `state`, all on one thread; `stop` is called by the freeze thread."""

    def __init__(self, state: DaemonState, stop: Callable[[TenantRecord, str], None]) -> None:
        self._state = state
        self._stop = stop
        self._warned: dict[str, int] = {}  # by key, the limit of which a warning was logged

    def look(self) -> None:
        """Judge all tenants."""
        records = self._state.ledger.entries
        self._warned = {key: limit for key, limit in self._warned.items() if key in records}
        for record in records.values():
            limit = limit_seconds(record)
            if limit is None or record.state != "bound" or self._is_stopping(record):
                continue
            left = seconds_left(record) or 0.0
            if left <= 0:
                why = f"its time limit of {exact_duration(limit)} is over"
                self._state.freezing.submit(partial(self._end, record, why))
            elif is_near(record) and self._warned.get(record.key) != limit:
                self._warned[record.key] = limit
                log(
                    "tenant-time-limit-near",
                    "warning",
                    tenant=record.key,
                    id=record.id,
                    name=record.title,
                    limit_seconds=limit,
                    left_seconds=round(left),
                    pod=record.of_pod,
                )

    def _is_stopping(self, record: TenantRecord) -> bool:
        return any(one.by == "stop" for one in self._state.ledger.freezes.of(record.key))

    def _end(self, record: TenantRecord, why: str) -> None:
        if self._is_stopping(record):
            return
        try:
            self._stop(record, why)
        except UserError as error:  # the next look tries it again
            log(
                "tenant-time-limit-failed",
                "error",
                tenant=record.key,
                id=record.id,
                name=record.title,
                error=str(error),
            )
