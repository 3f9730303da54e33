# SPDX-License-Identifier: Apache-2.0
"""The file of events that gpushared keeps in state_dir, read also while it does not run.

gpushared writes it (gpushare/daemon/store/history.py). Only root may open it, because a lock on it
would stop the writer; other users ask gpushared (`Client.history`).
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
#: The columns of an event, in the order of `event_of`.
EVENT_COLUMNS: Final = "number, e.at, boot, generation, event, level, key, id, name, card, fields"
_BETWEEN: Final = f"""
SELECT {EVENT_COLUMNS} FROM event AS e JOIN start USING (generation)
WHERE e.at >= ? AND e.at < ? AND event IN (SELECT value FROM json_each(?))
ORDER BY e.at, number
"""  # noqa: S608 - a constant


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
