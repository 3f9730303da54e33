# SPDX-License-Identifier: Apache-2.0
"""The journal of who is held still, and who is being ended: written before the kernel is told.

What a daemon that is killed at any instruction had begun, the next one finds here. A tenant is held
while anybody holds it; its rows go with its entry.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from gpushare.daemon.store.copies import Copies, Listed

Transaction: TypeAlias = Callable[[], AbstractContextManager[sqlite3.Connection]]
_COPY: Final = "holds"

#: Whose word it is; "kill": it is to end, whoever said so; "duty": the audit has it run for a part
#: of the time, by turns.
By = Literal["operator", "audit", "kill", "duty"]


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
    """The table `hold`. `all` is replaced, never changed, so any thread may read it.

    `transaction` is one of the ledger's, which has `entries`; where that `is_lost` the rows are
    taken from their copy, and so they are where table and copy differ and no draft is left.
    """

    def __init__(
        self, transaction: Transaction, copies: Copies, entries: Container[str], *, is_lost: bool
    ) -> None:
        self._transaction = transaction
        self._copies = copies
        with transaction() as store:
            table = None if is_lost else _rows(store)
        self.all: Mapping[str, tuple[Hold, ...]] = MappingProxyType({})
        listed = copies.read_listed(_COPY)
        for hold in _true(table, listed):
            if hold.key in entries:
                self._publish(hold.key, (*self._others(hold.key, hold.by), hold))
        if set(self._flat()) != set(table or ()) or listed.draft is not None:
            self.write_again()

    def of(self, key: str) -> tuple[Hold, ...]:
        """Return what was said of tenant `key`."""
        return self.all.get(key, ())

    def put(self, hold: Hold) -> None:
        """Write `hold`, in place of what the same one said of the same tenant before; OSError."""
        self._change(hold.key, (*self._others(hold.key, hold.by), hold))

    def drop(self, key: str, by: By) -> None:
        """Take back what `by` said of tenant `key`; nothing said is fine. OSError."""
        self._change(key, self._others(key, by))

    def forget(self, key: str) -> None:
        """Publish that nothing is said of tenant `key`: its rows went with its entry."""
        if key not in self.all:
            return
        self._publish(key, ())
        # Those of who is no tenant are not believed: that it may fail harms nobody.
        with contextlib.suppress(OSError), self._copies.listing(_COPY, _asdicts(self._flat())):
            pass

    def write_again(self) -> None:
        """Have table and copy say what is published; a full disk leaves them as they are."""
        with contextlib.suppress(OSError, sqlite3.IntegrityError):  # entries may be missing too
            self._write(self._flat())

    def _change(self, key: str, holds: tuple[Hold, ...]) -> None:
        others = tuple(hold for hold in self._flat() if hold.key != key)
        self._write((*others, *holds))
        self._publish(key, holds)

    def _write(self, holds: Sequence[Hold]) -> None:
        with self._copies.listing(_COPY, _asdicts(holds)), self._transaction() as store:
            store.execute("DELETE FROM hold")
            store.executemany(
                "INSERT INTO hold (key, by, why, since, due, cgroup, thaws) "
                "VALUES (:key, :by, :why, :since, :due, :cgroup, :thaws)",
                _asdicts(holds),
            )

    def _flat(self) -> tuple[Hold, ...]:
        return tuple(hold for holds in self.all.values() for hold in holds)

    def _others(self, key: str, by: By) -> tuple[Hold, ...]:
        return tuple(hold for hold in self.of(key) if hold.by != by)

    def _publish(self, key: str, holds: tuple[Hold, ...]) -> None:
        rest = {other: kept for other, kept in self.all.items() if other != key}
        self.all = MappingProxyType({**rest, key: holds} if holds else rest)


def _asdicts(holds: Iterable[Hold]) -> list[dict[str, Any]]:
    return [asdict(hold) for hold in holds]


def _rows(store: sqlite3.Connection) -> tuple[Hold, ...]:
    rows = store.execute(
        "SELECT key, by, why, since, due, cgroup, thaws FROM hold ORDER BY since, by"
    )
    return tuple(
        Hold(key, by, why, since, due, cgroup, bool(thaws))
        for key, by, why, since, due, cgroup, thaws in rows
    )


def _true(table: tuple[Hold, ...] | None, listed: Listed) -> tuple[Hold, ...]:
    """Return what holds: see store/agree.py, which does the same for entries."""
    try:
        kept, draft = (
            None if rows is None else tuple(Hold(**row) for row in rows) for rows in listed
        )
    except TypeError:  # of a later version
        return table or ()
    if table is not None and draft is not None and set(table) == set(draft):
        return table
    if table is None and draft is not None:
        return draft
    return (table or ()) if kept is None else kept
