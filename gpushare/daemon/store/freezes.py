# SPDX-License-Identifier: Apache-2.0
"""What the ledger records of the freezes of tenants, and of kills that are promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

#: What froze the tenant. "idle": `idle.action` paused it, as an operator does; "stop": it is to be
#: killed, at whatever request; "unknown": it was frozen when gpushared started, without a record.
By = Literal["operator", "idle", "audit", "stop", "unknown", "time-limit"]
#: These do not keep a tenant frozen.
NOT_FREEZES: Final[frozenset[By]] = frozenset({"stop", "unknown"})


@dataclass(frozen=True)
class FreezeRecord:
    """One freeze of one tenant, or its kill.

    `since` is seconds since the epoch; `due`, the time of the kill, of CLOCK_BOOTTIME. `cgroup`,
    "hierarchy:path", is what was frozen. `thaws`: gpushared may thaw it; it was not frozen before.
    """

    key: str
    by: By
    why: str
    since: float
    due: float = 0.0
    cgroup: str = ""
    thaws: bool = True


class FreezeJournal:
    """The freezes of all tenants, for any thread: `all` is replaced, never changed.

    What is in effect is in memory, and in the kernel. `store` is called with the key of a tenant
    whose freezes are to be written to the disk: no freeze waits for that, or depends on it. `found`
    are those that were written.
    """

    def __init__(
        self, store: Callable[[str], None], found: Mapping[str, tuple[FreezeRecord, ...]]
    ) -> None:
        self.store = store
        self.all: Mapping[str, tuple[FreezeRecord, ...]] = MappingProxyType(dict(found))
        self._lock = threading.Lock()

    def of(self, key: str) -> tuple[FreezeRecord, ...]:
        """Return the freezes of tenant `key`, the oldest first."""
        return self.all.get(key, ())

    def put(self, freeze: FreezeRecord) -> None:
        """Note `freeze` in place of an earlier one by the same for the same tenant."""
        with self._lock:
            self._publish(freeze.key, (*self._others(freeze.key, freeze.by), freeze))
        self.store(freeze.key)

    def drop(self, key: str, by: By) -> None:
        """Remove the freeze of tenant `key` by `by`, if there is one."""
        with self._lock:
            left = self._others(key, by)
            if left == self.of(key):
                return
            self._publish(key, left)
        self.store(key)

    def forget(self, key: str) -> None:
        """Publish that tenant `key` has no freezes: they ended with its record."""
        with self._lock:
            self._publish(key, ())

    def _others(self, key: str, by: By) -> tuple[FreezeRecord, ...]:
        return tuple(freeze for freeze in self.of(key) if freeze.by != by)

    def _publish(self, key: str, freezes: tuple[FreezeRecord, ...]) -> None:
        others = {other: kept for other, kept in self.all.items() if other != key}
        self.all = MappingProxyType({**others, key: freezes} if freezes else others)
