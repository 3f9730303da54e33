# SPDX-License-Identifier: Apache-2.0
"""The history of this node: the events that are KEPT, for some days, across reboots.

No decision depends on it. It has a thread and a bounded queue of its own, so that a thread that
logs never waits for a disk. Events that do not fit, or cannot be written, are counted, reported and
lost. A damaged file is set aside, and a new one is started.

A full history drops the oldest events of the owner that has the most: no owner displaces the events
of others by causing many. Events of LASTING give way only to each other, and have half of the
queue and at least half of the file.

SQLite in state_dir, write-ahead log, synchronous=NORMAL: after a power cut the last moments may be
missing, and no more (sqlite.org/pragma.html, "synchronous"). Each row has the boot, and the
generation: how many daemons had begun on this file by then.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.daemon.core.log import event_owner, log
from gpushare.events import KEPT, LASTING
from gpushare.events_file import (
    CACHE_KIB,
    CONTAINERS,
    EVENTS_FILE,
    FORMAT,
    PAGE,
    TABLES,
    event_of,
    make_room,
    open_events,
)
from gpushare.history.sqlite_file import prepare, put_aside, storable, used_bytes
from gpushare.protocol import HistoryEvent

_MOST_QUEUED: Final = 4096  # of each kind: of LASTING, and the others
_MOST_FIELDS_BYTES: Final = 16384
_PRUNE_SECONDS: Final = 600.0
# Between an event and its row: others wait for what the logging thread does, and this thread
# would take the interpreter from it. What follows within it goes into the same transaction.
_PAUSE_SECONDS: Final = 0.02
_AGAIN_SECONDS: Final = 30.0  # after a failure; what comes meanwhile waits in the queue
_DAY_SECONDS: Final = 86400.0

#: (seconds since the epoch, event, level, key, id, name, card, the other fields as JSON, owner,
#: whether it is of LASTING)
_Event = tuple[float, str, str, str, str, str, str, str, str, bool]
#: Of a tenant's key: the container's id, and its name.
NameOf = Callable[[str], tuple[str, str] | None]


@dataclass(frozen=True)
class EventSubject:
    """The selection of events: those of a card, by UUID, and of containers. Nothing set: all.

    Of events without a key: by ID, or by name where there is no ID.
    """

    card: str = ""
    keys: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()


class History:
    """The file, its thread and its queue. `note` is a sink of the log: any thread may call it."""

    def __init__(
        self,
        folder: Path,
        boot_id: str,
        *,
        days: float,
        most_bytes: int,
    ) -> None:
        self.lost = 0  # events that could not be kept
        self.fault = ""  # why nothing is kept at the moment
        self.generation = 0
        self.name_of: NameOf = lambda _key: None  # the ledger's, once there is one
        self._path = folder / EVENTS_FILE
        self._boot_id = boot_id
        self._days, self._most_bytes = days, most_bytes
        self._queue: deque[_Event] = deque()
        self._queued: Counter[bool] = Counter()  # by whether they are of LASTING
        self._changed = threading.Condition()
        self._stopping = False
        self._pruned = 0.0
        self._lost_told = 0
        self._thread = threading.Thread(target=self._serve, name="history", daemon=True)
        if days:
            self._thread.start()

    def note(self, at: float, event: str, level: str, fields: Mapping[str, Any]) -> None:
        """Keep an event, if it is one that is kept; returns at once."""
        if event not in KEPT or not self._days:
            return
        row = self._row(at, event, level, fields)
        with self._changed:
            if self._queued[row[-1]] >= _MOST_QUEUED or self._stopping:
                self.lost += 1
                return
            self._queue.append(row)
            self._queued[row[-1]] += 1
            if len(self._queue) == 1:
                self._changed.notify_all()

    def settle(self, seconds: float) -> bool:
        """Wait until all that was noted is written, or cannot be; False where it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self.fault) or not self._queue, seconds)

    def close(self, seconds: float) -> None:
        """Write what is left, for at most `seconds`, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._days:
            self._thread.join(seconds)

    def containers(self, name: str) -> list[tuple[str, str, str]]:
        """Return key, ID and name of containers with events that `name` may mean; OSError."""
        return self._read(CONTAINERS, {"name": name})

    def has_card(self, uuid: str) -> bool:
        """Return whether an event of this card is stored; OSError."""
        return bool(self._read("SELECT 1 FROM event WHERE card = ? LIMIT 1", (uuid,)))

    def page(
        self, subject: EventSubject, since: float, after: int, most: int
    ) -> list[HistoryEvent]:
        """Return at most `most` events of `subject` since `since` (of the epoch), after `after`.

        `after` is an event's number. OSError: it cannot be read.
        """
        values = {
            "everything": subject == EventSubject(),
            "card": subject.card,
            "keys": json.dumps(sorted(subject.keys)),
            "ids": json.dumps(sorted(subject.ids)),
            "since": since,
            "after": after,
            "most": most,
        }
        return [event_of(row) for row in self._read(PAGE, values)]

    def _read(self, query: str, values: Any) -> list[Any]:
        try:
            with contextlib.closing(open_events(self._path)) as store:
                return store.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"cannot be read now ({error})", str(self._path)) from error

    def _row(self, at: float, event: str, level: str, fields: Mapping[str, Any]) -> _Event:
        rest, owner = dict(fields), event_owner(fields)
        key = str(rest.pop("tenant", ""))
        known = self.name_of(key) if key else None
        identity, name = str(rest.pop("id", "")), str(rest.pop("name", ""))
        if known is not None:
            identity, name = identity or known[0], name or known[1]
        card = str(rest.pop("card", rest.pop("uuid", "")))
        text = json.dumps(rest, separators=(",", ":"), default=str)
        if len(text) > _MOST_FIELDS_BYTES:
            text = '{"note":"too long to store; see the log"}'
        return at, event, level, key, identity, name, card, text, owner, event in LASTING

    # --- the history thread ---

    def _serve(self) -> None:
        store: sqlite3.Connection | None = None
        while (batch := self._take()) is not None:
            try:
                store = self._open() if store is None else store
                self._write(store, batch)
            except (sqlite3.OperationalError, OSError) as error:  # a full disk, a lock, no folder
                self._give_up(store)
                self._fail(str(error))
                self._wait(_AGAIN_SECONDS)
            except sqlite3.DatabaseError as error:
                self._give_up(store)
                store = None
                self._wait(0.0 if self._put_aside(error) else _AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - what it was is lost, and the rest is kept
                self._give_up(store)
                self._remove(batch, lost=len(batch))
                self._fail(f"{type(error).__name__}: {error}")
            else:
                self._done(batch)
        if store is not None:
            store.close()

    def _take(self) -> list[_Event] | None:
        """Return what is to be written, or nothing where it is time to prune; None at the end.

        It stays in the queue until it is written.
        """
        with self._changed:
            if self._changed.wait_for(lambda: self._queue or self._stopping, _PRUNE_SECONDS):
                self._changed.wait_for(lambda: self._stopping, _PAUSE_SECONDS)
            if self._stopping and (self.fault or not self._queue):
                self.lost += len(self._queue)
                return None
            return list(self._queue)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _remove(self, batch: Sequence[_Event], lost: int = 0) -> None:
        with self._changed:
            for _ in batch:
                self._queued[self._queue.popleft()[-1]] -= 1
            self.lost += lost
            self._changed.notify_all()

    def _done(self, batch: Sequence[_Event]) -> None:
        fault, self.fault = self.fault, ""
        self._remove(batch)
        lost, self._lost_told = self.lost - self._lost_told, self.lost
        if fault or lost:
            log("history-resumed", "warning", lost=lost)

    @staticmethod
    def _give_up(store: sqlite3.Connection | None) -> None:
        """Undo what was begun."""
        if store is not None and store.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                store.rollback()

    def _put_aside(self, error: sqlite3.Error) -> bool:
        """Put a damaged file out of the way; whether that could be done."""
        try:
            aside = put_aside(self._path)
        except OSError as failed:
            self._fail(f"{self._path} is damaged ({error}), and stays ({failed.strerror})")
            return False
        log("history-damaged", "error", path=str(aside), reason=str(error))
        return True

    def _fail(self, fault: str) -> None:
        with self._changed:
            before, self.fault = self.fault, fault
            self._changed.notify_all()
        if before != fault:
            log("history-write-failed", "error", reason=fault)

    def _open(self) -> sqlite3.Connection:
        """Open the file, or begin it; sqlite3.DatabaseError where it is none of ours."""
        # A lock on one of its three files stops every other user of them: no one else may open one.
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(self._path, flags, 0o600))
        store = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
        try:
            prepare(store, TABLES, FORMAT, cache_kib=CACHE_KIB, log_bytes=4 << 20)
            begun = store.execute(
                "INSERT INTO start (boot, at) VALUES (?, ?)", (self._boot_id, time.time())
            )
        except BaseException:
            store.close()
            raise
        assert begun.lastrowid is not None
        self.generation = begun.lastrowid
        return store

    def _write(self, store: sqlite3.Connection, batch: Sequence[_Event]) -> None:
        if batch:
            store.execute("BEGIN IMMEDIATE")
            values = [
                [storable(part) if isinstance(part, str) else part for part in row] for row in batch
            ]
            store.executemany(
                "INSERT INTO event (generation, at, event, level, key, id, name, card, fields, "
                "owner, lasting) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(self.generation, *row) for row in values],
            )
            store.execute("COMMIT")
        now = time.monotonic()
        if (
            now - self._pruned >= _PRUNE_SECONDS
            or not self._pruned
            or used_bytes(store) > self._most_bytes
        ):
            self._pruned = now
            self._prune(store)

    def _prune(self, store: sqlite3.Connection) -> None:
        """Forget what is older than `days`; of what takes more than `most`, see `make_room`."""
        oldest = time.time() - self._days * _DAY_SECONDS
        store.execute("DELETE FROM event WHERE at < ?", (oldest,))
        while used_bytes(store) > self._most_bytes:
            if not make_room(store):
                break
        store.execute(
            "DELETE FROM start WHERE generation NOT IN (SELECT generation FROM event) "
            "AND generation <> ?",
            (self.generation,),
        )
        store.execute("PRAGMA incremental_vacuum").fetchall()
