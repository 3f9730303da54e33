# SPDX-License-Identifier: Apache-2.0
"""The tables of the history's file: how they are made, pruned and read."""

from __future__ import annotations

import sqlite3
from typing import Final

from gpushare.event_reader import CACHE_KIB, EVENT_COLUMNS

_FORMAT: Final = 2  # of the tables; of another one the file is put aside
_TABLES: Final = """
CREATE TABLE start (
    generation INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, at REAL NOT NULL
) STRICT;
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    generation INTEGER NOT NULL,
    event TEXT NOT NULL,
    level TEXT NOT NULL,
    key TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    card TEXT NOT NULL,
    fields TEXT NOT NULL,
    owner TEXT NOT NULL,
    lasting INTEGER NOT NULL
) STRICT;
CREATE INDEX event_at ON event (at);
CREATE INDEX event_key ON event (key);
CREATE INDEX event_owner ON event (lasting, owner);
"""
PAGE: Final = f"""
SELECT {EVENT_COLUMNS}
FROM event AS e JOIN start USING (generation)
WHERE number > :after AND e.at >= :since AND (
    :everything OR :card <> '' AND card = :card
    OR key IN (SELECT value FROM json_each(:keys))
    -- A refused request never had a key, and a claim has a name only.
    OR key = '' AND CASE id WHEN '' THEN name ELSE id END IN (SELECT value FROM json_each(:ids))
)
ORDER BY number LIMIT :most
"""  # noqa: S608 - a constant
#: Containers that :name may mean (service/history_operation.py), each with its names in order.
CONTAINERS: Final = """
SELECT key, id, name FROM event
WHERE key = :name OR substr(id, 1, length(:name)) = :name OR instr('/' || name, '/' || :name)
GROUP BY key, id, name ORDER BY max(number)
"""
_MUCH: Final = 16  # an owner with this part of the events of a kind gives way first


def prepare(store: sqlite3.Connection) -> None:
    """Set the store up, and make its tables where it is new; DatabaseError where it is damaged."""
    store.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file
    store.execute("PRAGMA journal_mode = WAL")
    store.execute("PRAGMA synchronous = NORMAL")
    store.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    store.execute(f"PRAGMA journal_size_limit = {4 << 20}")
    [version] = store.execute("PRAGMA user_version").fetchone()
    if version == 0:
        store.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_FORMAT}; COMMIT")
    [result] = store.execute("PRAGMA quick_check (1)").fetchone()
    if result != "ok":
        raise sqlite3.DatabaseError(result)
    if version not in {0, _FORMAT}:
        raise sqlite3.DatabaseError(f"its format is {version}, not {_FORMAT}")


def make_room(store: sqlite3.Connection) -> bool:
    """Drop some of the oldest events; False if there is none.

    They are of the kind, LASTING or not, that has more than half, and there of the owner that has
    the most. Where no owner has much, they are the oldest of that kind.
    """
    of_kind = dict(store.execute("SELECT lasting, count(*) FROM event GROUP BY lasting"))
    if not of_kind:
        return False
    lasting = int(of_kind.get(1, 0) > of_kind.get(0, 0))
    owner, most = store.execute(
        "SELECT owner, count(*) FROM event WHERE lasting = ? GROUP BY owner "
        "ORDER BY count(*) DESC LIMIT 1",
        (lasting,),
    ).fetchone()
    has_much = most * _MUCH >= of_kind[lasting]
    count = max(1, (most if has_much else of_kind[lasting]) // 8)
    store.execute(
        "DELETE FROM event WHERE number IN (SELECT number FROM event WHERE lasting = :lasting "
        "AND (:all OR owner = :owner) ORDER BY number LIMIT :count)",
        {"lasting": lasting, "owner": owner, "all": not has_much, "count": count},
    )
    return True


def used_bytes(store: sqlite3.Connection) -> int:
    """Return the bytes that the store uses: free pages are used before the file grows."""
    sizes = ("page_count", "freelist_count", "page_size")
    pages, free, size = (store.execute(f"PRAGMA {name}").fetchone()[0] for name in sizes)
    return int((pages - free) * size)
