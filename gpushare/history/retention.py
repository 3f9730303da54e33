# SPDX-License-Identifier: Apache-2.0
"""From samples to periods of five minutes, and what is deleted when its time has come."""

from __future__ import annotations

import sqlite3
from itertools import groupby
from operator import itemgetter
from typing import Final

from gpushare.history import tables
from gpushare.history.packed import pack, unpack
from gpushare.history.sqlite_file import used_bytes
from gpushare.history.tables import KINDS, PERIOD_SECONDS

INTERVAL_SECONDS: Final = 10
SAMPLES_SECONDS: Final = 6 * 3600  # how long samples are kept beside the periods
PERIOD_MS: Final = 1000 * PERIOD_SECONDS
_HOUR_MS: Final = 3_600_000
_DAY_SECONDS: Final = 86400


def merge(store: sqlite3.Connection, at: int, days: float, most_bytes: int) -> str:
    """Make periods of the samples of all but the current one, and delete what has its time.

    Return what is not kept although it should be.
    """
    now = at // PERIOD_MS * PERIOD_MS
    oldest, packed_since = now // 1000 - int(days * _DAY_SECONDS), now - 1000 * SAMPLES_SECONDS
    found = store.execute(
        "SELECT DISTINCT at / :period * :period AS start FROM moment WHERE start <> :now",
        {"period": PERIOD_MS, "now": now},
    )
    for [start] in found.fetchall():
        span = {"start": start, "end": start + PERIOD_MS}
        for kind in KINDS:
            store.execute(tables.merge_samples(kind), span)
            if start >= packed_since:
                _pack(store, kind, span)
            store.execute(
                f"DELETE FROM {kind}_sample WHERE moment IN "  # noqa: S608 - names are ours
                "(SELECT id FROM moment WHERE at >= :start AND at < :end)",
                span,
            )
        store.execute("DELETE FROM moment WHERE at >= :start AND at < :end", span)
    _drop_packed(store, packed_since)
    _drop_periods(store, oldest)
    if now % _HOUR_MS == 0:
        _drop_subjects(store, oldest)
    return _keep_small(store, days, most_bytes)


def _pack(store: sqlite3.Connection, kind: str, span: dict[str, int]) -> None:
    """Add the samples of a period to those that are packed already, if the clock was set back."""
    start = span["start"] // 1000
    rows = store.execute(tables.samples_of(kind), span)
    for subject, found in groupby(rows, itemgetter(0)):
        samples = [row[1:] for row in found]
        place = start, subject
        earlier = store.execute(
            f"SELECT samples FROM {kind}_packed WHERE start = ? AND subject = ?",  # noqa: S608
            place,
        ).fetchone()
        if earlier is not None:
            samples += zip(*unpack(earlier[0]), strict=True)
        store.execute(
            f"INSERT OR REPLACE INTO {kind}_packed VALUES (?, ?, ?)",  # noqa: S608
            (*place, pack(samples)),
        )


def _drop_packed(store: sqlite3.Connection, since: int) -> None:
    """Delete the samples before `since`, which their periods have."""
    for kind in KINDS:
        store.execute(f"DELETE FROM {kind}_packed WHERE start < ?", (since // 1000,))  # noqa: S608
    store.execute(
        "INSERT INTO state VALUES ('packed_since', ?1) ON CONFLICT (name) DO UPDATE "
        "SET value = max(value, ?1)",
        (since,),
    )


def _drop_periods(store: sqlite3.Connection, since: int) -> None:
    for kind in KINDS:
        store.execute(f"DELETE FROM {kind}_period WHERE start < ?", (since,))  # noqa: S608


def _drop_subjects(store: sqlite3.Connection, since: int) -> None:
    """Delete the subjects that were not seen since the time `since`."""
    store.execute(
        "DELETE FROM subject WHERE last < ? AND id NOT IN (SELECT subject FROM seen)",
        (1000 * since,),
    )
    store.execute("DELETE FROM container WHERE id NOT IN (SELECT container FROM subject)")
    store.execute("DELETE FROM card WHERE id NOT IN (SELECT card FROM subject)")


def _keep_small(store: sqlite3.Connection, days: float, most_bytes: int) -> str:
    """Delete the oldest periods until the file has its size; return what to say of it."""
    notice = ""
    while used_bytes(store) > most_bytes:
        first, last = _span(store)
        if last <= first:
            break
        oldest = first + max(PERIOD_SECONDS, (last - first) // 8)
        _drop_periods(store, oldest)
        _drop_subjects(store, oldest)
        notice = (
            f"it has {(last - oldest) / _DAY_SECONDS:.1f} of {days:g} days, for it would be larger "
            "than metrics_history.max_size"
        )
    return notice


def _span(store: sqlite3.Connection) -> tuple[int, int]:
    """Return the first and the last period; 0 where there is none."""
    first, last = store.execute(
        "SELECT min(start), max(start) FROM (SELECT start FROM card_period "
        "UNION ALL SELECT start FROM container_period)"
    ).fetchone()
    return first or 0, last or 0
