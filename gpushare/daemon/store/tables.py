# SPDX-License-Identifier: Apache-2.0
"""The ledger's tables, and how a store that an earlier version left becomes one of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

FORMAT: Final = 8  # of the tables; a later one is not read
_HOLD: Final = """
CREATE TABLE hold (
    key TEXT NOT NULL REFERENCES tenant (key) ON DELETE CASCADE,
    by TEXT NOT NULL CHECK (by IN ('operator', 'audit', 'kill', 'duty')),
    why TEXT NOT NULL,
    since REAL NOT NULL,
    due REAL NOT NULL,
    cgroup TEXT NOT NULL,
    thaws INTEGER NOT NULL,
    PRIMARY KEY (key, by)
) STRICT
"""
TABLES: Final = f"""
CREATE TABLE about (
    format INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tenant (
    key TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'bound', 'none')),
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    engine TEXT NOT NULL,
    bundle TEXT NOT NULL,
    uid INTEGER NOT NULL,
    policy TEXT NOT NULL,
    isolation TEXT NOT NULL,
    why TEXT NOT NULL,
    quota TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    pid INTEGER NOT NULL,
    starttime INTEGER NOT NULL,
    cgroup TEXT NOT NULL,
    notes TEXT NOT NULL DEFAULT '[]',
    namespace TEXT NOT NULL DEFAULT '',
    sandbox TEXT NOT NULL DEFAULT '',
    container TEXT NOT NULL DEFAULT '',
    uninterposed TEXT NOT NULL DEFAULT '[]',
    compat TEXT NOT NULL DEFAULT '',
    weight INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL DEFAULT 5,
    class TEXT NOT NULL DEFAULT 'offline' CHECK (class IN ('online', 'offline')),
    maker INTEGER NOT NULL DEFAULT 0,
    maker_starttime INTEGER NOT NULL DEFAULT 0,
    asked TEXT NOT NULL DEFAULT '{{}}'
) STRICT;
CREATE TABLE holding (
    key TEXT NOT NULL REFERENCES tenant (key) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    uuid TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes > 0),
    memory_limit_bytes INTEGER CHECK (memory_limit_bytes >= memory_bytes),
    cores INTEGER NOT NULL,
    reserved_cores INTEGER NOT NULL,
    whole INTEGER NOT NULL,
    PRIMARY KEY (key, number)
) STRICT;
{_HOLD};
"""
# What turns a store of each earlier format, which that version left to its tenants, into the next.
UPGRADES: Final = {
    1: (
        (
            "ALTER TABLE holding ADD COLUMN memory_limit_bytes INTEGER "
            "CHECK (memory_limit_bytes >= memory_bytes)"
        ),
    ),
    2: (
        "ALTER TABLE tenant ADD COLUMN notes TEXT NOT NULL DEFAULT '[]'",
        *(
            f"ALTER TABLE tenant ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"
            for name in ("namespace", "sandbox", "container")
        ),
        "ALTER TABLE tenant ADD COLUMN uninterposed TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE tenant ADD COLUMN compat TEXT NOT NULL DEFAULT ''",
    ),
    # That version noted weight, priority and class as they were asked, and did nothing with them.
    3: (
        "ALTER TABLE tenant ADD COLUMN weight INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tenant ADD COLUMN priority INTEGER NOT NULL DEFAULT 5",
        (
            "ALTER TABLE tenant ADD COLUMN class TEXT NOT NULL DEFAULT 'offline' "
            "CHECK (class IN ('online', 'offline'))"
        ),
        *(
            f"UPDATE tenant SET {key} = CAST(json_extract(quota, '$.{key}') AS INTEGER) "  # noqa: S608
            f"WHERE json_extract(quota, '$.{key}') IS NOT NULL"
            for key in ("weight", "priority")
        ),
        "UPDATE tenant SET class = 'online' WHERE json_extract(quota, '$.class') LIKE 'online %'",
    ),
    4: (_HOLD,),
    5: (
        "ALTER TABLE about ADD COLUMN generation INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tenant ADD COLUMN maker INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tenant ADD COLUMN maker_starttime INTEGER NOT NULL DEFAULT 0",
    ),
    6: ("ALTER TABLE tenant ADD COLUMN asked TEXT NOT NULL DEFAULT '{}'",),
    # Who runs by turns: a CHECK cannot be altered.
    7: (
        "ALTER TABLE hold RENAME TO hold_before",
        _HOLD,
        "INSERT INTO hold SELECT * FROM hold_before",
        "DROP TABLE hold_before",
    ),
}


class OtherFormat(Exception):
    """The store is of a later version: not damaged, and not for us to read or to move."""


class About(NamedTuple):
    """Which boot a store is of, and how many daemons have started on it."""

    boot_id: str
    generation: int


def is_empty(store: sqlite3.Connection) -> bool:
    """Whether a store has no table yet."""
    return bool(store.execute("SELECT count(*) = 0 FROM sqlite_schema").fetchone()[0])


def check(store: sqlite3.Connection) -> About:
    """Return what the store is of, with its tables as this version has them.

    ValueError, sqlite3.Error: it is damaged. OtherFormat.
    """
    [(verdict,)] = store.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise ValueError(" ".join(str(verdict).split()))
    [(found,)] = store.execute("SELECT format FROM about").fetchall()
    if found != FORMAT:
        upgrade(store, found)
    [(boot_id, generation)] = store.execute("SELECT boot_id, generation FROM about").fetchall()
    return About(str(boot_id), int(generation))


def upgrade(store: sqlite3.Connection, found: object) -> None:
    """Make a store of an earlier format one of ours; OtherFormat for one of a later."""
    if not isinstance(found, int) or found < min(UPGRADES):
        raise ValueError(f"format {found!r} was never written")
    if found > FORMAT:
        raise OtherFormat(f"format {found}, and this version writes {FORMAT}")
    with changed(store):
        for step in range(found, FORMAT):
            for statement in UPGRADES[step]:
                store.execute(statement)
        store.execute("UPDATE about SET format = ?", (FORMAT,))


def make(store: sqlite3.Connection, about: About) -> None:
    """Make the tables in an empty store."""
    with changed(store):
        for statement in TABLES.split(";")[:-1]:
            store.execute(statement)
        store.execute("INSERT INTO about VALUES (?, ?, ?)", (FORMAT, *about))


@contextmanager
def changed(store: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One transaction: all of it or, on an error or a crash, nothing."""
    with store:
        store.execute("BEGIN IMMEDIATE")
        yield store
