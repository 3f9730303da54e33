# SPDX-License-Identifier: Apache-2.0
"""The ledger: who was promised what, and whether it is still held.

A tenant's entry is `reserved` before anything of it exists, `bound` when its process is known, and
is deleted (released) when that is gone. An entry that is never bound expires. `none` is a container
that looked like a GPU's and got none, kept so that `ps -a` can say why.

The store is SQLite in run_dir with synchronous=OFF and a write-ahead log. What was committed is in
the page cache, so a daemon killed at any instruction loses nothing (sqlite.org/pragma.html,
"synchronous"); only a machine that goes down can lose it, and with that every tenant is gone too:
entries of another boot are discarded. fsync, on a slow disk and for 200 containers at once, would
buy nothing.

Each entry has a copy beside the store (store/copies.py). A store that is damaged is set aside and
made again from them; one that cannot be opened or written now, on a full disk, is replaced by one
in memory, beside which the copies go on as before.

One thread writes. `entries` is a mapping that is replaced, never changed, so any thread may read.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpushare.daemon.log import log
from gpushare.daemon.store import quarantine, tables
from gpushare.daemon.store.agree import Agreed, agree
from gpushare.daemon.store.copies import Copies, Found
from gpushare.daemon.store.doubt import Doubt
from gpushare.daemon.store.entry import Entry, Holding, State
from gpushare.daemon.store.holds import Holds
from gpushare.daemon.store.tables import About
from gpushare.errors import UserError

__all__ = ["Entry", "Holding", "Ledger", "LedgerError", "State"]

_DAMAGE: Final = (sqlite3.Error, ValueError, TypeError, LookupError, RecursionError)
# Of sqlite3.OperationalError, which is mostly the disk's fault, what only a damaged file causes.
_DAMAGED_TEXTS: Final = ("no such", "Could not decode")
_BESIDE: Final = ("-wal", "-shm")
_COLUMNS: Final = (
    *("key", "state", "id", "name", "engine", "bundle", "uid", "policy", "isolation", "why"),
    *("quota", "created", "expires", "pid", "starttime", "cgroup"),
    *("notes", "namespace", "sandbox", "container", "uninterposed", "compat"),
    *("weight", "priority", "class", "maker", "maker_starttime", "asked"),
)
# In place of the row that is there, which others point to.
_PUT: Final = (
    f"INSERT INTO tenant ({', '.join(_COLUMNS)}) "  # noqa: S608 - names of ours
    f"VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])
)


class LedgerError(UserError):
    """The store is of a later version, or there is no place for one."""


class Ledger:
    """The store at `file`; made where it is not there, emptied where it is of another boot.

    `generation` counts the daemons of this boot. `fault` says why the store is in memory only, ""
    where it is not. `told` is what an operator should know of how it was found; `unknown` are the
    keys of tenants of whom nothing can be read. Unless it `is_complete` nothing says that there
    were no others. LedgerError.

    `doubt` hears of it, before anything is changed, where it is lost with all its copies.
    """

    def __init__(self, file: Path, boot_id: str, doubt: Doubt | None = None) -> None:
        self.file = file
        self.fault = ""
        self.told: tuple[str, ...] = ()
        self._boot_id = boot_id
        try:
            self._copies = Copies(file.parent / "copies", boot_id)
            found = self._copies.read()
        except OSError as error:
            raise LedgerError(f"{error.filename}: {error.strerror}; it is gpushared's") from error
        self._store, about, rows = self._opened(None if found.about else doubt)
        self.is_complete = found.about is not None or bool(rows)
        agreed = agree(rows, found)
        self.unknown = agreed.unknown
        before = found.about or About(boot_id, 0)
        self.generation = max(about.generation, before.generation) + 1
        self._set_right(agreed, found)
        self.entries: Mapping[str, Entry] = MappingProxyType(dict(agreed.entries))
        self.holds = Holds(self._transaction, self._copies, self.entries, is_lost=rows is None)
        self._tell(rows, agreed, found)

    def close(self) -> None:
        """Close the store; every entry stays."""
        self._store.close()
        self._copies.close()

    def add(self, entry: Entry) -> None:
        """Write a new entry, instead of one that has the same key."""
        with self._changed(entry) as store:
            if entry.key in self.entries:
                store.execute("DELETE FROM tenant WHERE key = ?", (entry.key,))
            _put(store, entry)
        self.holds.forget(entry.key)
        self._publish({**self.entries, entry.key: entry})

    def isolate(self, key: str, isolation: str) -> Entry:
        """Note what holds the tenant's quota."""
        return self._replace(replace(self.entries[key], isolation=isolation))

    def describe(
        self, key: str, notes: Sequence[str], uninterposed: Sequence[str], compat: str
    ) -> Entry:
        """Note what the tenant got of the driver; the notes are added to those that it has."""
        entry = self.entries[key]
        return self._replace(
            replace(
                entry,
                notes=(*entry.notes, *notes),
                uninterposed=tuple(uninterposed),
                compat=compat,
            )
        )

    def bind(self, key: str, *, pid: int, starttime: int, cgroup: str) -> Entry:
        """Note the process of a reservation, which from now on lasts as long as it."""
        bound = replace(
            self.entries[key], state="bound", pid=pid, starttime=starttime, cgroup=cgroup
        )
        return self._replace(bound)

    def rename(self, key: str, name: str, engine: str) -> Entry:
        """Note the name by which the engine, which is `engine`, knows the tenant."""
        return self._replace(replace(self.entries[key], name=name, engine=engine))

    def resize(self, *entries: Entry) -> None:
        """Change what tenants have of each of their cards, and what they asked, to `entries`'.

        The cards stay the same, and all else of the tenants.
        """
        with self._changed(*entries) as store:
            for entry in entries:
                _put(store, entry)
        self._publish({**self.entries, **{entry.key: entry for entry in entries}})

    def release(self, key: str) -> None:
        """Delete the entry: nothing is promised to it any more. One that is not there is fine."""
        with self._copies.removing(key), self._transaction() as store:
            store.execute("DELETE FROM tenant WHERE key = ?", (key,))
        self.holds.forget(key)
        self._publish({other: entry for other, entry in self.entries.items() if other != key})

    def confirm(self) -> None:
        """Note that nobody is missing any more, or that who is missing is in doubt; OSError."""
        self._copies.give_up(key for key in self.unknown if key not in self.entries)
        self.unknown = ()
        self._copies.write_about(self.generation)
        self.is_complete = True

    def settle(self) -> None:
        """Have the store on disk again, where it could not be."""
        if not self.fault:
            return
        before, fault = self._store, self.fault
        self.fault = ""
        try:
            self._store, _, rows = self._opened(None)
        except LedgerError as error:
            self.fault = str(error)
            return
        if self.fault:
            self.fault = fault
            self._store.close()
            self._store = before
            return
        agreed = Agreed(self.entries, tuple({*self.entries, *(rows or {})}))
        self._set_right(agreed, self._copies.read())
        if not self.fault:
            self.holds.write_again()
            before.close()
            log("ledger-back", tenants=len(self.entries))

    @contextmanager
    def _changed(self, *entries: Entry) -> Iterator[sqlite3.Connection]:
        """One transaction, and the copies of it: all or, on an error or a crash, nothing."""
        with self._copies.changing(entries), self._transaction() as store:
            yield store

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with tables.changed(self._store) as store:
                yield store
        except sqlite3.OperationalError as error:
            why = f"{error}: nothing new can be noted there; who runs keeps what it has"
            raise OSError(errno.ENOSPC, why, str(self.file)) from error

    def _replace(self, entry: Entry) -> Entry:
        with self._changed(entry) as store:
            _put(store, entry)
        self._publish({**self.entries, entry.key: entry})
        return entry

    def _publish(self, entries: dict[str, Entry]) -> None:
        self.entries = MappingProxyType(entries)

    def _opened(
        self, doubt: Doubt | None
    ) -> tuple[sqlite3.Connection, About, dict[str, Entry] | None]:
        """Return the store, what it is of, and its entries of this boot: None where it is damaged.

        A damaged one is set aside, after `doubt` has heard of it. What the disk refuses is opened
        in memory.
        """
        try:
            try:
                return _open(self.file, self._boot_id)
            except tables.OtherFormat as error:
                raise LedgerError(
                    f"{self.file} is of another version of gpushare ({error}); install that one, "
                    f"or end the containers that use a GPU, rm {self.file}* and start again"
                ) from error
            except _DAMAGE as error:
                if _is_of_the_disk(error):
                    raise
                if doubt is not None:
                    doubt.add("the ledger was lost and its copies too: whole cards may be in use")
                aside = quarantine.set_aside(self.file, *_BESIDE)
                why = " ".join(str(error).split())
                log("ledger-damaged", "error", error=why, aside=str(aside))
                self.told = (f"the ledger was damaged ({why}); it is kept as {aside}",)
                store, about, _ = _open(self.file, self._boot_id)
                return store, about, None
        except (sqlite3.OperationalError, OSError) as error:
            self.fault = f"{self.file} cannot be written ({error}); the ledger is in memory"
            log("ledger-aside", "error", file=str(self.file), error=str(error))
            return *_open(Path(":memory:"), self._boot_id)[:2], None

    def _set_right(self, agreed: Agreed, found: Found) -> None:
        """Have store and copies say what was agreed; what a full disk refuses stays as it is."""
        try:
            with self._transaction() as store:
                store.execute("UPDATE about SET generation = ?", (self.generation,))
                for key in agreed.behind:
                    store.execute("DELETE FROM tenant WHERE key = ?", (key,))
                    if key in agreed.entries:
                        _put(store, agreed.entries[key])
            self._copies.settle(agreed.entries, found)
            if self.is_complete:
                self._copies.write_about(self.generation)
        except OSError as error:
            self.fault = f"{self.file} cannot be written ({error.strerror})"
            log("ledger-aside", "error", file=str(self.file), error=str(error))

    def _tell(self, rows: Mapping[str, Entry] | None, agreed: Agreed, found: Found) -> None:
        """Say what was not as the last daemon left it."""
        if rows is None and not self.fault:
            count = sum(entry.state != "none" for entry in agreed.entries.values())
            log("ledger-rebuilt", "warning", tenants=sorted(agreed.entries))
            self.told += (f"it was made again from the copies of its entries: {count} tenants",)
        elif rows is not None and agreed.behind:
            log("ledger-behind", "error", tenants=agreed.behind)
            count = len(agreed.behind)
            self.told += (
                f"the ledger had lost {count} tenants' promises: taken from their copies",
            )
        if found.damaged:
            log("copy-damaged", "error", tenants=sorted(found.damaged))


def _open(file: Path, boot_id: str) -> tuple[sqlite3.Connection, About, dict[str, Entry]]:
    """Return the store at `file`, what it is of, and its entries of this boot."""
    store = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=1.0)
    try:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("PRAGMA synchronous = OFF")
        store.execute("PRAGMA foreign_keys = ON")
        if tables.is_empty(store):
            tables.make(store, About(boot_id, 0))
        about = tables.check(store)
        entries = _read(store)
        if about.boot_id != boot_id:
            with tables.changed(store):
                store.execute("DELETE FROM tenant")
                store.execute("UPDATE about SET boot_id = ?, generation = 0", (boot_id,))
            log("ledger-discarded", boot=about.boot_id, tenants=len(entries))
            return store, About(boot_id, 0), {}
    except BaseException:
        store.close()
        raise
    return store, about, entries


def _is_of_the_disk(error: Exception) -> bool:
    """Whether it is not the store that is at fault: no room, no permission, somebody else's lock.

    The error's code would say so too, from Python 3.11 on.
    """
    if not isinstance(error, sqlite3.OperationalError):
        return False
    return not any(text in str(error) for text in _DAMAGED_TEXTS)


def _put(store: sqlite3.Connection, entry: Entry) -> None:
    """Write an entry, over one that has the same key."""
    store.execute(
        _PUT,
        (
            *(entry.key, entry.state, entry.id, entry.name, entry.engine, entry.bundle),
            *(entry.uid, entry.policy, entry.isolation, entry.why),
            *(json.dumps(dict(entry.quota)), entry.created, entry.expires),
            *(entry.pid, entry.starttime, entry.cgroup),
            *(json.dumps(entry.notes), entry.namespace, entry.sandbox, entry.container),
            *(json.dumps(entry.uninterposed), entry.compat),
            *(entry.weight, entry.priority, entry.class_, entry.maker, entry.maker_starttime),
            json.dumps(dict(entry.asked)),
        ),
    )
    store.execute("DELETE FROM holding WHERE key = ?", (entry.key,))
    store.executemany(
        "INSERT INTO holding (key, number, uuid, memory_bytes, memory_limit_bytes, cores, "
        "reserved_cores, whole) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(entry.key, number, holding.uuid, holding.memory_bytes),
                *(holding.memory_limit_bytes, holding.cores),
                *(holding.reserved_cores, holding.whole),
            )
            for number, holding in enumerate(entry.holdings)
        ],
    )


def _read(store: sqlite3.Connection) -> dict[str, Entry]:
    holdings: dict[str, list[Holding]] = {}
    for key, uuid, memory_bytes, limit_bytes, cores, reserved, whole in store.execute(
        "SELECT key, uuid, memory_bytes, memory_limit_bytes, cores, reserved_cores, whole "
        "FROM holding ORDER BY key, number"
    ):
        holding = Holding(uuid, memory_bytes, cores, reserved, bool(whole), limit_bytes)
        holdings.setdefault(key, []).append(holding)
    rows: Iterable[Sequence[object]] = store.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM tenant ORDER BY created"  # noqa: S608
    )
    return {
        str(row[0]): _entry(dict(zip(_COLUMNS, row, strict=True)), holdings.get(str(row[0]), ()))
        for row in rows
    }


def _entry(values: dict[str, object], holdings: Sequence[Holding]) -> Entry:
    """Return the entry of a row; ValueError, TypeError where a text is not what was written."""
    values["class_"] = values.pop("class")
    for name in ("quota", "asked"):
        values[name] = dict(json.loads(str(values[name])))
    for name in ("notes", "uninterposed"):
        values[name] = tuple(json.loads(str(values[name])))
    return Entry(**values, holdings=tuple(holdings))  # type: ignore[arg-type]
