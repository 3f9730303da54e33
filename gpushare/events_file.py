# SPDX-License-Identifier: Apache-2.0
"""The file of events that gpushared keeps in state_dir: its tables, and what is read from them.

gpushared writes it (gpushare/daemon/store/history.py); it is read also while gpushared does not
run. Only root may open it, because a lock on it would stop the writer; other users ask gpushared
(`Client.history`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from gpushare.protocol import HistoryEvent

EVENTS_FILE: Final = "history/events.db"  # in state_dir
CACHE_KIB: Final = 256
FORMAT: Final = 2  # of the tables; of another one the file is put aside
TABLES: Final = """
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
#: The columns of an event, in the order of `event_of`.
EVENT_COLUMNS: Final = "number, e.at, boot, generation, event, level, key, id, name, card, fields"
_BETWEEN: Final = f"""
SELECT {EVENT_COLUMNS} FROM event AS e JOIN start USING (generation)
WHERE e.at >= ? AND e.at < ? AND event IN (SELECT value FROM json_each(?))
ORDER BY e.at, number
"""  # noqa: S608 - a constant
#: Of a subject, by `History.page`.
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
#: Containers that :name may mean (daemon/views/event_pages.py), each with its names in order.
CONTAINERS: Final = """
SELECT key, id, name FROM event
WHERE key = :name OR substr(id, 1, length(:name)) = :name OR instr('/' || name, '/' || :name)
GROUP BY key, id, name ORDER BY max(number)
"""


def open_events(path: Path) -> sqlite3.Connection:
    """Open the file to read it; FileNotFoundError if it does not exist."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no history yet", str(path))
    store = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
    store.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return store


def read_events(
    state_dir: Path, since: float, until: float, events: Collection[str]
) -> list[HistoryEvent]:
    """Return the `events` from `since` to `until` (of the epoch), oldest first.

    OSError if the file cannot be read: PermissionError for a user other than root.
    """
    path = state_dir / EVENTS_FILE
    with path.open("rb"):  # sqlite3 does not say why it cannot open a file
        pass
    try:
        with contextlib.closing(open_events(path)) as store:
            rows = store.execute(_BETWEEN, (since, until, json.dumps(sorted(events))))
            return [event_of(row) for row in rows]
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"cannot be read now ({error})", str(path)) from error


def event_of(row: Sequence[Any]) -> HistoryEvent:
    """Return the event of a row of EVENT_COLUMNS."""
    number, at, boot, generation, event, level, key, identity, name, card, fields = row
    return HistoryEvent(
        number=number,
        time=at,
        boot_id=boot,
        generation=generation,
        event=event,
        level=level,
        key=key,
        id=identity,
        name=name,
        card=card,
        fields=json.loads(fields),
    )


_MUCH: Final = 16  # an owner with this part of the events of a kind gives way first


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
