# SPDX-License-Identifier: Apache-2.0
"""The journal of who is held still, and who is being ended: written before the kernel is told.

What a daemon that is killed at any instruction had begun, the next one finds here. A tenant is held
while anybody holds it; its rows go with its entry.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal

from gpushare.daemon.store import tables

#: Whose word it is; "kill": it is to end, whoever said so.
By = Literal["operator", "audit", "kill"]


@dataclass(frozen=True)
class Hold:
    """One word about one tenant.

    `since` is seconds since the epoch, `due` of CLOCK_BOOTTIME: when it is to be killed. `cgroup`,
    "hierarchy:path", is what was frozen. `thaws`: that is ours to thaw; it was not frozen before.
    """

    key: str
    by: By
    why: str
    since: float
    due: float = 0.0
    cgroup: str = ""
    thaws: bool = True


class Holds:
    """The table `hold` of `store`. `all` is replaced, never changed, so any thread may read it."""

    def __init__(self, store: sqlite3.Connection) -> None:
        self._store = store
        rows = store.execute(
            "SELECT key, by, why, since, due, cgroup, thaws FROM hold ORDER BY since, by"
        )
        self.all: Mapping[str, tuple[Hold, ...]] = MappingProxyType({})
        for key, by, why, since, due, cgroup, thaws in rows.fetchall():
            hold = Hold(key, by, why, since, due, cgroup, bool(thaws))
            self._publish(hold.key, (*self.of(hold.key), hold))

    def of(self, key: str) -> tuple[Hold, ...]:
        """Return what was said of tenant `key`."""
        return self.all.get(key, ())

    def put(self, hold: Hold) -> None:
        """Write `hold`, in place of what the same one said of the same tenant before."""
        with tables.changed(self._store) as store:
            store.execute(
                "INSERT OR REPLACE INTO hold (key, by, why, since, due, cgroup, thaws) "
                "VALUES (:key, :by, :why, :since, :due, :cgroup, :thaws)",
                asdict(hold),
            )
        self._publish(hold.key, (*self._others(hold.key, hold.by), hold))

    def drop(self, key: str, by: By) -> None:
        """Take back what `by` said of tenant `key`; nothing said is fine."""
        with tables.changed(self._store) as store:
            store.execute("DELETE FROM hold WHERE key = ? AND by = ?", (key, by))
        self._publish(key, self._others(key, by))

    def forget(self, key: str) -> None:
        """Publish that nothing is said of tenant `key`: its rows went with its entry."""
        self._publish(key, ())

    def _others(self, key: str, by: By) -> tuple[Hold, ...]:
        return tuple(hold for hold in self.of(key) if hold.by != by)

    def _publish(self, key: str, holds: tuple[Hold, ...]) -> None:
        rest = {other: kept for other, kept in self.all.items() if other != key}
        self.all = MappingProxyType({**rest, key: holds} if holds else rest)
