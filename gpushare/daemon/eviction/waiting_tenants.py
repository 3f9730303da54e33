# SPDX-License-Identifier: Apache-2.0
"""The evicted tenants that wait for their restore, as the observations publish them; any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import MappingProxyType

from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.steps import identity
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord


class WaitingTenants:
    """Since when each waits (of the epoch), and what else than room it lacks."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._told: set[str] = set()  # of which an event has said so

    @property
    def since(self) -> Mapping[str, float]:
        """When each tenant began to wait, by key, in the order of arrival."""
        return self._state.observed.waiting

    def add(self, key: str) -> None:
        """Note that a tenant waits."""
        with self._lock:
            self._publish({**self.since, key: self.since.get(key, time.time())})

    def forget(self, key: str) -> None:
        """Note that a tenant waits no more."""
        self._told.discard(key)
        self.note_fault(key, "")
        with self._lock:
            self._publish({one: since for one, since in self.since.items() if one != key})

    def note_fault(self, key: str, why: str) -> None:
        """Note what else than room a waiting tenant lacks, "": nothing."""
        others = {one: text for one, text in self.faults.items() if one != key}
        self._state.observed.restore_faults = {**others, key: why} if why else others

    @property
    def faults(self) -> Mapping[str, str]:
        """What else than room waiting tenants lack, by key."""
        return self._state.observed.restore_faults

    def clear_faults(self) -> None:
        """Have all of them tried again."""
        self._state.observed.restore_faults = {}

    def tell(self, record: TenantRecord, why: str) -> None:
        """Log once that a tenant waits."""
        if record.key not in self._told:
            self._told.add(record.key)
            log("tenant-restore-waits", "warning", **identity(record), reason=why)

    def _publish(self, waiting: Mapping[str, float]) -> None:
        self._state.observed.waiting = MappingProxyType(dict(waiting))
