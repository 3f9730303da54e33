# SPDX-License-Identifier: Apache-2.0
"""The tables of the metrics history, made from the figures (docs/adr/0033 has the reasons).

A sample is a row of `card_sample` for each card, and of `container_sample` for each card of each
container; `moment` has its time. Those of five minutes become a row of `card_period` or
`container_period`, with the minimum, maximum, integral and time of each gauge, and the increase of
each counter, and for some hours one of `card_packed` or `container_packed` with all of them. `seen`
has what the counters were when they were seen last. Integrals and times are in milliseconds.

The keys of the large tables begin with the time: rows are added at the end and deleted at the
start, and a page of the file is written once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

from gpushare.history import sqlite_file
from gpushare.history.figures import (
    CARD_FIGURES,
    CONTAINER_FIGURES,
    MetricFigure,
    counters,
    gauges,
)

FILE: Final = "metrics.db"
FORMAT: Final = 2
PERIOD_SECONDS: Final = 300
KINDS: Final[Mapping[str, Mapping[str, MetricFigure]]] = {
    "card": CARD_FIGURES,
    "container": CONTAINER_FIGURES,
}
_CACHE_KIB: Final = 512
_LONGEST_LOG_BYTES: Final = 1 << 20
_LOG_PAGES: Final = 200

_SUBJECTS: Final = """
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE card (
    id INTEGER PRIMARY KEY, uuid TEXT UNIQUE, number INTEGER, model TEXT, memory_bytes INTEGER
);
CREATE TABLE container (
    id INTEGER PRIMARY KEY, key TEXT UNIQUE, identity TEXT, name TEXT, namespace TEXT, pod TEXT,
    user TEXT, labels TEXT, engine TEXT, mode TEXT, policy TEXT
);
-- A card (container 0), or a container on a card.
CREATE TABLE subject (
    id INTEGER PRIMARY KEY, card INTEGER, container INTEGER, first INTEGER, last INTEGER,
    counters TEXT, UNIQUE (container, card)
);
-- The subjects of the last sample, which are more recent than `subject` has them.
CREATE TABLE seen (subject INTEGER PRIMARY KEY, last INTEGER, counters TEXT);
CREATE TABLE moment (id INTEGER PRIMARY KEY, at INTEGER);
"""


def _period_columns(figures: Mapping[str, MetricFigure]) -> list[str]:
    columns = []
    for figure in gauges(figures):
        name = figure.name
        columns += [f"{name}_least", f"{name}_most", f"{name}_sum", f"{name}_ms"]
    return [*columns, *(figure.name for figure in counters(figures))]


def _large_tables(kind: str) -> str:
    samples = "".join(f", {name} INTEGER" for name in KINDS[kind])
    periods = "".join(f", {name} INTEGER" for name in _period_columns(KINDS[kind]))
    return f"""
CREATE TABLE {kind}_sample (
    moment INTEGER, subject INTEGER, ms INTEGER{samples}, PRIMARY KEY (moment, subject)
) WITHOUT ROWID;
CREATE TABLE {kind}_packed (
    start INTEGER, subject INTEGER, samples BLOB, PRIMARY KEY (start, subject)
) WITHOUT ROWID;
CREATE TABLE {kind}_period (
    start INTEGER, subject INTEGER, ms INTEGER{periods}, PRIMARY KEY (start, subject)
) WITHOUT ROWID;
"""


def insert_sample(kind: str) -> str:
    """Return the statement that adds a sample of a subject: moment, subject, ms, the figures."""
    marks = ", ".join("?" for _ in KINDS[kind])
    return f"INSERT INTO {kind}_sample VALUES (?, ?, ?, {marks})"  # noqa: S608 - names are ours


def merge_samples(kind: str) -> str:
    """Return the statement that adds the samples from :start until :end to their period.

    The period is there already if the clock was set back, or samples came late.
    """
    columns, merged = ["ms"], ["ms = ms + excluded.ms"]
    found = ["sum(ms)"]
    for figure in gauges(KINDS[kind]):
        name, added = figure.name, f"excluded.{figure.name}"
        columns += [f"{name}_least", f"{name}_most", f"{name}_sum", f"{name}_ms"]
        found += [
            f"min({name})",
            f"max({name})",
            f"sum({name} * ms)",
            f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE ms END)",
        ]
        merged += [
            # min() and max() of two are NULL if one of them is.
            *(
                f"{name}_{end} = coalesce({how}({name}_{end}, {added}_{end}), "
                f"{name}_{end}, {added}_{end})"
                for end, how in (("least", "min"), ("most", "max"))
            ),
            f"{name}_sum = coalesce({name}_sum + {added}_sum, {name}_sum, {added}_sum)",
            f"{name}_ms = {name}_ms + {added}_ms",
        ]
    for figure in counters(KINDS[kind]):
        columns.append(figure.name)
        found.append(f"sum({figure.name})")
        merged.append(f"{figure.name} = {figure.name} + excluded.{figure.name}")
    return (
        f"INSERT INTO {kind}_period (start, subject, {', '.join(columns)}) "  # noqa: S608
        f"SELECT :start / 1000, subject, {', '.join(found)} "
        f"FROM moment JOIN {kind}_sample ON moment.id = {kind}_sample.moment "
        "WHERE at >= :start AND at < :end GROUP BY subject "
        f"ON CONFLICT (start, subject) DO UPDATE SET {', '.join(merged)}"
    )


def samples_of(kind: str) -> str:
    """Return the query for what `packed.pack` takes, by subject, from :start until :end."""
    return (
        f"SELECT subject, at - :start, ms, {', '.join(KINDS[kind])} "  # noqa: S608 - names are ours
        f"FROM moment JOIN {kind}_sample ON moment.id = moment "
        "WHERE at >= :start AND at < :end ORDER BY subject, at"
    )


def prepare(store: sqlite3.Connection) -> None:
    """Set the store up, and make its tables where it is new; DatabaseError where it is damaged."""
    tables = _SUBJECTS + "".join(map(_large_tables, KINDS))
    sqlite_file.prepare(store, tables, FORMAT, cache_kib=_CACHE_KIB, log_bytes=_LONGEST_LOG_BYTES)
    store.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")


#: From when on there are packed samples, and not only periods; milliseconds.
PACKED_SINCE: Final = "coalesce((SELECT value FROM state WHERE name = 'packed_since'), 0)"


def _periods_query(kind: str, figure: MetricFigure) -> str:
    name = figure.name
    columns = f"{name}_least, {name}_most, {name}_sum, {name}_ms"
    if figure.counter:
        columns = f"0, 0, {name}, ms"
    return (
        f"{_STARTS} SELECT 1000 * start, {1000 * PERIOD_SECONDS}, {columns} "  # noqa: S608
        f"FROM time CROSS JOIN {kind}_period USING (start) WHERE subject = ?1 "
        f"AND {name if figure.counter else f'{name}_sum'} IS NOT NULL"
    )


def _samples_query(kind: str, figure: MetricFigure) -> str:
    name = figure.name
    return (
        f"SELECT at, ms, {name} FROM moment "  # noqa: S608 - names are ours
        f"CROSS JOIN {kind}_sample ON moment.id = moment AND subject = ?1 "
        f"WHERE at >= ?2 AND at < ?3 AND {name} IS NOT NULL"
    )


#: The periods from ?2 on that begin before ?3, in seconds.
_STARTS: Final = f"""
WITH RECURSIVE time (start) AS (
    SELECT ?2 WHERE ?2 < ?3
    UNION ALL SELECT start + {PERIOD_SECONDS} FROM time WHERE start + {PERIOD_SECONDS} < ?3
)
"""  # noqa: S608 - names are ours
#: Of a kind and figure, all of subject ?1.
PERIODS: Final = {
    (kind, name): _periods_query(kind, figure)
    for kind, figures in KINDS.items()
    for name, figure in figures.items()
}
SAMPLES: Final = {  # that are in no period yet
    (kind, name): _samples_query(kind, figure)
    for kind, figures in KINDS.items()
    for name, figure in figures.items()
}
PACKED: Final = {
    kind: f"{_STARTS} SELECT start, samples FROM time CROSS JOIN {kind}_packed "  # noqa: S608
    "USING (start) WHERE subject = ?1"
    for kind in KINDS
}
