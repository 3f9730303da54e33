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

One thread writes. `entries` is a mapping that is replaced, never changed, so any thread may read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from gpushare.daemon.store import tables
from gpushare.daemon.store.holds import Holds
from gpushare.errors import UserError
from gpushare.quota import DEFAULT_PRIORITY

State = Literal["reserved", "bound", "none"]


class LedgerError(UserError):
    """The store cannot be read; starting without it would promise the same memory twice."""


@dataclass(frozen=True)
class Holding:
    """What a tenant has of one card; its place in `Entry.holdings` is the tenant's card number.

    `memory_bytes` is promised. Up to `memory_limit_bytes` it may be lent; None: nothing is.
    """

    uuid: str
    memory_bytes: int
    cores: int = 0  # asked
    reserved_cores: int = 0  # as far as the policy guarantees them
    whole: bool = False
    memory_limit_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The most that it may ever use: what is promised, or what may be lent with it."""
        return self.memory_limit_bytes or self.memory_bytes


@dataclass(frozen=True)
class Entry:
    """One tenant. `created` is seconds since the epoch; `expires` of CLOCK_BOOTTIME."""

    key: str
    state: State
    id: str
    name: str = ""  # as the engine or Kubernetes names it; empty: not known yet
    engine: str = "runc"
    bundle: str = ""
    uid: int = 0  # who opened it
    policy: str = ""
    isolation: str = ""
    why: str = ""
    quota: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    expires: float = 0.0
    pid: int = 0
    starttime: int = 0  # of `pid`: /proc/PID/stat field 22
    cgroup: str = ""  # "hierarchy:path" as in /proc/PID/cgroup; empty: none of its own
    notes: tuple[str, ...] = ()  # what a lower source said and did not get
    namespace: str = ""  # of Kubernetes, and so the next two; empty: of no pod
    sandbox: str = ""  # the pod's id
    container: str = ""  # its name in the pod
    holdings: tuple[Holding, ...] = ()
    uninterposed: tuple[str, ...] = ()  # capabilities of the driver that go past the interposer
    compat: str = ""  # the copy of a cuda-compat package that is its driver
    weight: int = 0  # 0: none asked
    priority: int = DEFAULT_PRIORITY  # 0 comes first
    class_: str = "offline"

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return self.name or self.id[:12]

    @property
    def shared(self) -> bool:
        """Whether it has pages and an interposer."""
        return bool(self.holdings) and not self.holdings[0].whole

    def is_set(self, key: str) -> bool:
        """Whether canonical `key` has the operator's word."""
        return self.quota.get(key, "").endswith(" operator")


class Ledger:
    """The store at `file`; made where it is not there, emptied where it is of another boot."""

    def __init__(self, file: Path, boot_id: str) -> None:
        self.file = file
        try:
            self._store = _open(file, boot_id)
            self.entries: Mapping[str, Entry] = MappingProxyType(_read(self._store))
            self.holds = Holds(self._store)
        except (sqlite3.DatabaseError, ValueError) as error:
            raise LedgerError(
                f"the ledger {file} is damaged ({error}); without it no GPU memory can be promised "
                f"safely. Stop the containers that use a GPU, remove {file}*, start gpushared again"
            ) from error

    def close(self) -> None:
        """Close the store; every entry stays."""
        self._store.close()

    def add(self, entry: Entry) -> None:
        """Write a new entry, instead of one that has the same key."""
        with tables.changed(self._store) as store:
            store.execute("DELETE FROM tenant WHERE key = ?", (entry.key,))
            store.execute(
                f"INSERT INTO tenant VALUES ({', '.join('?' * 25)})",  # noqa: S608
                (
                    *(entry.key, entry.state, entry.id, entry.name, entry.engine, entry.bundle),
                    *(entry.uid, entry.policy, entry.isolation, entry.why),
                    *(json.dumps(dict(entry.quota)), entry.created, entry.expires),
                    *(entry.pid, entry.starttime, entry.cgroup),
                    *(json.dumps(entry.notes), entry.namespace, entry.sandbox, entry.container),
                    *(json.dumps(entry.uninterposed), entry.compat),
                    *(entry.weight, entry.priority, entry.class_),
                ),
            )
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
        self.holds.forget(entry.key)
        self._publish({**self.entries, entry.key: entry})

    def isolate(self, key: str, isolation: str) -> Entry:
        """Note what holds the tenant's quota."""
        with tables.changed(self._store) as store:
            store.execute("UPDATE tenant SET isolation = ? WHERE key = ?", (isolation, key))
        return self._replace(replace(self.entries[key], isolation=isolation))

    def describe(
        self, key: str, notes: Sequence[str], uninterposed: Sequence[str], compat: str
    ) -> Entry:
        """Note what the tenant got of the driver; the notes are added to those that it has."""
        entry = self.entries[key]
        entry = replace(
            entry,
            notes=(*entry.notes, *notes),
            uninterposed=tuple(uninterposed),
            compat=compat,
        )
        with tables.changed(self._store) as store:
            store.execute(
                "UPDATE tenant SET notes = ?, uninterposed = ?, compat = ? WHERE key = ?",
                (json.dumps(entry.notes), json.dumps(entry.uninterposed), compat, key),
            )
        return self._replace(entry)

    def bind(self, key: str, *, pid: int, starttime: int, cgroup: str) -> Entry:
        """Note the process of a reservation, which from now on lasts as long as it."""
        with tables.changed(self._store) as store:
            store.execute(
                "UPDATE tenant SET state = 'bound', pid = ?, starttime = ?, cgroup = ? "
                "WHERE key = ?",
                (pid, starttime, cgroup, key),
            )
        bound = replace(
            self.entries[key], state="bound", pid=pid, starttime=starttime, cgroup=cgroup
        )
        return self._replace(bound)

    def rename(self, key: str, name: str, engine: str) -> Entry:
        """Note the name by which the engine, which is `engine`, knows the tenant."""
        with tables.changed(self._store) as store:
            store.execute(
                "UPDATE tenant SET name = ?, engine = ? WHERE key = ?", (name, engine, key)
            )
        return self._replace(replace(self.entries[key], name=name, engine=engine))

    def resize(self, *entries: Entry) -> None:
        """Change what tenants have of each of their cards, and what they asked, to `entries`'.

        The cards stay the same, and all else of the tenants.
        """
        with tables.changed(self._store) as store:
            for entry in entries:
                store.executemany(
                    "UPDATE holding SET memory_bytes = ?, memory_limit_bytes = ?, cores = ?, "
                    "reserved_cores = ? WHERE key = ? AND number = ?",
                    [
                        (
                            *(holding.memory_bytes, holding.memory_limit_bytes),
                            *(holding.cores, holding.reserved_cores, entry.key, number),
                        )
                        for number, holding in enumerate(entry.holdings)
                    ],
                )
                store.execute(
                    "UPDATE tenant SET quota = ?, policy = ?, weight = ?, priority = ?, class = ? "
                    "WHERE key = ?",
                    (
                        *(json.dumps(dict(entry.quota)), entry.policy),
                        *(entry.weight, entry.priority, entry.class_, entry.key),
                    ),
                )
        self._publish({**self.entries, **{entry.key: entry for entry in entries}})

    def release(self, key: str) -> None:
        """Delete the entry: nothing is promised to it any more. One that is not there is fine."""
        with tables.changed(self._store) as store:
            store.execute("DELETE FROM tenant WHERE key = ?", (key,))
        self.holds.forget(key)
        self._publish({other: entry for other, entry in self.entries.items() if other != key})

    def _replace(self, entry: Entry) -> Entry:
        self._publish({**self.entries, entry.key: entry})
        return entry

    def _publish(self, entries: dict[str, Entry]) -> None:
        self.entries = MappingProxyType(entries)


def _open(file: Path, boot_id: str) -> sqlite3.Connection:
    store = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=1.0)
    try:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("PRAGMA synchronous = OFF")
        store.execute("PRAGMA foreign_keys = ON")
        if _empty(store):
            tables.make(store, boot_id)
        if _checked_boot(store) != boot_id:
            with tables.changed(store):
                store.execute("DELETE FROM tenant")
                store.execute("UPDATE about SET boot_id = ?", (boot_id,))
    except BaseException:
        store.close()
        raise
    return store


def _empty(store: sqlite3.Connection) -> bool:
    return bool(store.execute("SELECT count(*) = 0 FROM sqlite_schema").fetchone()[0])


def _checked_boot(store: sqlite3.Connection) -> str:
    """Return the boot that the store is of; ValueError where it is damaged."""
    [(verdict,)] = store.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise ValueError(" ".join(str(verdict).split()))
    [(found, boot_id)] = store.execute("SELECT format, boot_id FROM about").fetchall()
    if found != tables.FORMAT:
        tables.upgrade(store, found)
    return str(boot_id)


def _read(store: sqlite3.Connection) -> dict[str, Entry]:
    holdings: dict[str, list[Holding]] = {}
    for key, uuid, memory_bytes, limit_bytes, cores, reserved, whole in store.execute(
        "SELECT key, uuid, memory_bytes, memory_limit_bytes, cores, reserved_cores, whole "
        "FROM holding ORDER BY key, number"
    ):
        holding = Holding(uuid, memory_bytes, cores, reserved, bool(whole), limit_bytes)
        holdings.setdefault(key, []).append(holding)
    columns = (
        *("key", "state", "id", "name", "engine", "bundle", "uid", "policy", "isolation", "why"),
        *("quota", "created", "expires", "pid", "starttime", "cgroup"),
        *("notes", "namespace", "sandbox", "container", "uninterposed", "compat"),
        *("weight", "priority", "class"),
    )
    entries: dict[str, Entry] = {}
    for row in store.execute(f"SELECT {', '.join(columns)} FROM tenant ORDER BY created"):  # noqa: S608
        values = dict(zip(columns, row, strict=True))
        values["class_"] = values.pop("class")
        values["quota"] = json.loads(values["quota"])
        values["notes"] = tuple(json.loads(values["notes"]))
        values["uninterposed"] = tuple(json.loads(values["uninterposed"]))
        key = values["key"]
        entries[key] = Entry(**values, holdings=tuple(holdings.get(key, ())))
    return entries
