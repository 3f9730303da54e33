# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics history: one transaction for each sample, so that a kill loses no more.

A gauge's value stands for the time since the sample before, or for ten seconds if there was none
for a while: that time stays a gap. A counter's increase since the sample before is kept, also if
samples are missing between the two, or could not be written: no increase is lost, and none is
counted twice.

The last figures of a container that has ended are a sample at its end, whenever they arrive. They
are in several answers: once they are written, the counters of the subject are marked as the last.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.history import retention, tables
from gpushare.history.figures import CARD_FIGURES, CONTAINER_FIGURES, counters
from gpushare.history.retention import INTERVAL_SECONDS, PERIOD_MS
from gpushare.history.sqlite_file import put_aside, storable
from gpushare.history.tables import FILE, KINDS

if TYPE_CHECKING:
    from gpushare.metrics_schema import Metrics
    from gpushare.protocol.rows import EndedTenantRow, TenantRow
import functools
import pwd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushare.protocol.rows import TenantRow


DAYS: Final = 7
#: Of seven days; enough for 16 cards and 200 containers (docs/measurements has the figures).
MOST_BYTES: Final = 200_000_000
_GAP_MS: Final = 30_000
_LONGEST_LOG_BYTES: Final = 2 << 20
_LOCK_SECONDS: Final = 10.0

#: What a subject's counters were when it was last seen: when they began, and their values.
_Counters = tuple[list[float], list[int]]


class HistoryUnwritable(Exception):
    """A sample cannot be written: a full disk, a damaged file; the text says which."""


def most_bytes_of(days: float) -> int:
    """Return how large the history of `days` may become."""
    return int(MOST_BYTES * max(days, 1) / DAYS)


class HistoryStore:
    """The history in `folder`, of one process and thread. `gid` is the group that may read it.

    Whoever may read may lock, and so keep it from being written: without a group, it is root alone.
    `notice` says what is not kept although it should be.
    """

    def __init__(
        self,
        folder: Path,
        *,
        days: float = DAYS,
        most_bytes: int | None = None,
        gid: int | None = None,
    ) -> None:
        self.notice = ""
        self._path = folder / FILE
        self._days, self._gid = days, gid
        most = most_bytes_of(days) if most_bytes is None else most_bytes
        self._room = most - _LONGEST_LOG_BYTES
        self._store: sqlite3.Connection | None = None
        self._lock = -1  # the folder, while no other process may write
        self._at = 0  # of the last sample, 0: there is none
        self._latest = 0  # of all samples: the clock may have been set back
        self._forget()

    def write(self, at: float, metrics: Metrics) -> None:
        """Add the sample of the time `at`; HistoryUnwritable: nothing of it was added."""
        try:
            store = self._opened()
            self._check_log(store)
            store.execute("BEGIN IMMEDIATE")
            self._add(store, round(at * 1000), metrics)
            store.execute("COMMIT")
            self._at = round(at * 1000)
        except (sqlite3.OperationalError, OSError) as error:  # a full disk, a lock, no folder
            self._give_up()
            raise HistoryUnwritable(str(error)) from error
        except sqlite3.DatabaseError as error:
            self.close()
            raise HistoryUnwritable(self._put_aside(error)) from error
        except BaseException:
            self._give_up()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether the next sample has to open the file again."""
        return self._store is None

    def close(self) -> None:
        """Close the file."""
        self._forget()
        if self._store is not None:
            with contextlib.suppress(sqlite3.Error):
                self._store.close()
            self._store = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- the file ---

    def _opened(self) -> sqlite3.Connection:
        if self._store is None:
            self._store = self._open()
        return self._store

    def _open(self) -> sqlite3.Connection:
        group, bits = (0, 0) if self._gid is None else (self._gid, 0o050)
        folder = self._path.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, -1, group)
        folder.chmod(0o700 | bits)
        if self._lock < 0:
            self._lock = _locked(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            # SQLite gives the two files beside it the same owner and mode.
            os.fchown(file, -1, group)
            os.fchmod(file, 0o600 | bits & 0o040)
        finally:
            os.close(file)
        store = sqlite3.connect(self._path, timeout=5.0, isolation_level=None)
        try:
            tables.prepare(store)
            row = store.execute(
                "SELECT at, coalesce((SELECT max(last) FROM seen), at) FROM moment "
                "ORDER BY id DESC LIMIT 1"
            ).fetchone()
        except BaseException:
            store.close()
            raise
        self._at, self._latest = row or (0, 0)
        return store

    def _give_up(self) -> None:
        """Undo what was begun."""
        self._forget()
        if self._store is not None and self._store.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._store.rollback()

    def _put_aside(self, error: sqlite3.Error) -> str:
        """Put a damaged file out of the way; return what to say of it."""
        try:
            aside = put_aside(self._path)
        except OSError as failed:
            return f"{self._path} is damaged ({error}), and stays ({failed.strerror})"
        self.notice = f"{self._path} was damaged ({error}); it is {aside.name} now"
        return self.notice

    def _check_log(self, store: sqlite3.Connection) -> None:
        """Refuse to go on while a reader that never ends keeps the log from being emptied."""
        log = self._path.with_name(f"{FILE}-wal")
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _LONGEST_LOG_BYTES:
                store.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchall()
                if log.stat().st_size > _LONGEST_LOG_BYTES:
                    raise OSError(errno.EBUSY, "a program that reads it does not end", str(log))

    # --- a sample ---

    def _forget(self) -> None:
        """Forget what the last sample had, which is in the file too."""
        self._containers: dict[str, tuple[int, dict[str, str]]] = {}
        self._subjects: dict[tuple[int, int], int] = {}
        self._seen: dict[int, _Counters] | None = None
        self._cards: dict[str, tuple[int, tuple[Any, ...]]] = {}

    def _add(self, store: sqlite3.Connection, at: int, metrics: Metrics) -> None:
        before, self._latest = self._at, max(self._latest, at)
        ms = at - before if 0 < at - before <= _GAP_MS else 1000 * INTERVAL_SECONDS
        if self._seen is None:
            self._seen = {
                subject: tuple(json.loads(text))
                for subject, text in store.execute("SELECT subject, counters FROM seen")
            }
        moment = store.execute("INSERT INTO moment (at) VALUES (?)", (at,)).lastrowid
        started, since = metrics.node["started"], (before or at - ms) / 1000
        for ended in sorted(metrics.ended, key=itemgetter("ended")):
            self._add_last(store, ended, started, since - INTERVAL_SECONDS)
        # A container that is created again may have the key of the one that has ended.
        ended_lives = {(ended["key"], ended["created"]) for ended in metrics.ended}
        seen: dict[int, _Counters] = {}
        rows: dict[str, list[list[Any]]] = {kind: [] for kind in KINDS}
        for card in metrics.cards:
            about = card["index"], storable(card["model"]), card["memory_bytes"]
            number = self._card(store, card["uuid"], about)
            figures = [figure.stored(card) for figure in CARD_FIGURES.values()]
            subject = self._subject(store, number, 0, at)
            self._count(store, "card", subject, figures, seen, [started, 0.0], since)
            rows["card"].append([moment, subject, ms, *figures])
        for tenant in metrics.tenants:
            if (tenant["key"], tenant["created"]) in ended_lives:
                continue
            container, created = self._container(store, tenant), tenant["created"]
            lasted = at - round(1000 * created)
            stands_for = min(ms, lasted) if lasted > 0 else ms
            for part in tenant["cards"]:
                figures = [figure.stored(tenant, part) for figure in CONTAINER_FIGURES.values()]
                subject = self._subject(store, self._card(store, part["uuid"]), container, at)
                self._count(store, "container", subject, figures, seen, [started, created], since)
                rows["container"].append([moment, subject, stands_for, *figures])
        for kind, samples in rows.items():
            store.executemany(tables.insert_sample(kind), samples)
        self._remember(store, seen, at)
        keys = {row["key"] for row in (*metrics.tenants, *metrics.ended)}
        self._containers = {key: row for key, row in self._containers.items() if key in keys}
        self._subjects = {place: row for place, row in self._subjects.items() if row in seen}
        if at // PERIOD_MS != before // PERIOD_MS:
            self.notice = retention.merge(store, at, self._days, self._room) or self.notice

    def _add_last(
        self, store: sqlite3.Connection, ended: EndedTenantRow, started: float, since: float
    ) -> None:
        """Add the sample of a container's end, unless it is there."""
        assert self._seen is not None
        container, at = self._container(store, ended), round(1000 * ended["ended"])
        began = [started, ended["created"]]
        for part in ended["cards"]:
            figures = [figure.stored(ended, part) for figure in CONTAINER_FIGURES.values()]
            subject = self._subject(store, self._card(store, part["uuid"]), container, at)
            before = self._before(store, subject)
            if before is not None and (before[0] == [*began, at] or before[0][1] > began[1]):
                continue
            last, seen = round(1000 * ended["created"]), dict[int, _Counters]()
            if before is not None:
                [last] = store.execute(
                    "SELECT max(?, coalesce(seen.last, subject.last)) FROM subject "
                    "LEFT JOIN seen ON seen.subject = subject.id WHERE subject.id = ?",
                    (last, subject),
                ).fetchone()
                if before[0] == began:  # it cannot have begun again since
                    first = len(figures) - len(before[1])
                    figures[first:] = [
                        max(value or 0, old)
                        for value, old in zip(figures[first:], before[1], strict=True)
                    ]
            self._count(store, "container", subject, figures, seen, began, since)
            stands_for = at - last if at - last <= _GAP_MS else 1000 * INTERVAL_SECONDS
            moment = store.execute("INSERT INTO moment (at) VALUES (?)", (at,)).lastrowid
            store.execute(
                tables.insert_sample("container"), (moment, subject, max(0, stands_for), *figures)
            )
            store.execute(
                "UPDATE subject SET last = max(?, ?), counters = ? WHERE id = ?",
                (last, at, json.dumps(([*began, at], seen[subject][1])), subject),
            )
            store.execute("DELETE FROM seen WHERE subject = ?", (subject,))
            self._seen.pop(subject, None)

    def _before(self, store: sqlite3.Connection, subject: int) -> _Counters | None:
        """Return the counters of a subject when it was last seen, None if it never was."""
        assert self._seen is not None
        known = self._seen.get(subject)
        if known is not None:
            return known
        [text] = store.execute("SELECT counters FROM subject WHERE id = ?", (subject,)).fetchone()
        return tuple(json.loads(text)) if text else None

    def _count(  # noqa: PLR0913, PLR0917 - called twice, for all there is of a subject
        self,
        store: sqlite3.Connection,
        kind: str,
        subject: int,
        figures: list[int | None],
        seen: dict[int, _Counters],
        began: list[float],
        since: float,
    ) -> None:
        """Replace the counters in `figures`, which are the last ones, with their increase.

        They are 0 at `began`. What is new is counted if it began after the sample before.
        """
        first = len(figures) - len(counters(KINDS[kind]))
        now = [value or 0 for value in figures[first:]]
        before = self._before(store, subject)
        seen[subject] = began, now
        if before is None:
            figures[first:] = now if max(began) >= since else [0] * len(now)
        elif before[0][:2] != began:
            figures[first:] = now
        else:
            figures[first:] = [
                value - old if value >= old else value
                for value, old in zip(now, before[1], strict=True)
            ]

    def _remember(self, store: sqlite3.Connection, seen: dict[int, _Counters], at: int) -> None:
        """Have `seen` be the counters of the last sample, and note those of whoever left."""
        left = [(subject,) for subject in (self._seen or {}) if subject not in seen]
        store.executemany(
            "UPDATE subject SET (last, counters) = (SELECT last, counters FROM seen "
            "WHERE seen.subject = subject.id) WHERE id = ?",
            left,
        )
        store.executemany("DELETE FROM seen WHERE subject = ?", left)
        store.executemany(
            "INSERT OR REPLACE INTO seen VALUES (?, ?, ?)",
            [(subject, self._latest, json.dumps(found)) for subject, found in seen.items()],
        )
        if at < self._latest:
            store.executemany(
                "UPDATE subject SET first = min(first, ?) WHERE id = ?",
                [(at, subject) for subject in seen],
            )
        self._seen = seen

    def _card(self, store: sqlite3.Connection, uuid: str, about: tuple[Any, ...] = ()) -> int:
        """Return the number of a card, and keep what there is to know of it up to date."""
        known = self._cards.get(uuid)
        if known is not None and (not about or known[1] == about):
            return known[0]
        store.execute("INSERT INTO card (uuid) VALUES (?) ON CONFLICT (uuid) DO NOTHING", (uuid,))
        if about:
            store.execute(
                "UPDATE card SET (number, model, memory_bytes) = (?, ?, ?) WHERE uuid = ?",
                (*about, uuid),
            )
        [number] = store.execute("SELECT id FROM card WHERE uuid = ?", (uuid,)).fetchone()
        self._cards[uuid] = number, about
        return int(number)

    def _container(self, store: sqlite3.Connection, tenant: TenantRow) -> int:
        """Return the number of a container, and keep what there is to know of it up to date."""
        about = container_row(tenant)
        known = self._containers.get(tenant["key"])
        if known is not None and known[1] == about:
            return known[0]
        names, marks = ", ".join(about), ", ".join(f":{name}" for name in about)
        updates = ", ".join(f"{name} = excluded.{name}" for name in about)
        # The last of two counts: who ran a process is not known any more when it has ended.
        updates += ", user = coalesce(nullif(excluded.user, ''), user)"
        store.execute(
            f"INSERT INTO container ({names}) VALUES ({marks}) "  # noqa: S608 - names are ours
            f"ON CONFLICT (key) DO UPDATE SET {updates}",
            about,
        )
        [number] = store.execute("SELECT id FROM container WHERE key = :key", about).fetchone()
        self._containers[tenant["key"]] = number, about
        return int(number)

    def _subject(self, store: sqlite3.Connection, card: int, container: int, at: int) -> int:
        known = self._subjects.get((container, card))
        if known is not None:
            return known
        store.execute(
            "INSERT INTO subject (card, container, first, last) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (container, card) DO NOTHING",
            (card, container, at, at),
        )
        [number] = store.execute(
            "SELECT id FROM subject WHERE container = ? AND card = ?", (container, card)
        ).fetchone()
        self._subjects[container, card] = number
        return int(number)


def _locked(folder: Path) -> int:
    """Return the folder, locked: what two processes write would be counted twice.

    One that was to end is waited for.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise
            time.sleep(_LOCK_SECONDS / 50)
        else:
            return descriptor


# --- what the metrics history has of a container beside its figures ---


@functools.lru_cache(maxsize=256)
def _user_name(uid: int | None) -> str:
    """Return the name of a user, or the number if it has none here."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def container_row(tenant: TenantRow) -> dict[str, str]:
    """Return the columns of a container."""
    pod = tenant["pod"]
    found = {
        "key": tenant["key"],
        "identity": tenant["id"],
        "name": tenant["name"],
        "namespace": "" if pod is None else pod["namespace"],
        "pod": "" if pod is None else pod["name"],
        "user": _user_name(tenant["uid"]),
        "labels": json.dumps(tenant["labels"], sort_keys=True),
        "engine": tenant["engine"],
        "mode": tenant["isolation"] if tenant["isolation"] in {"mps", "exclusive"} else "shared",
        "policy": tenant["policy"],
    }
    return {name: storable(value) for name, value in found.items()}
