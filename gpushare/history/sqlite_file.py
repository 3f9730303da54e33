# SPDX-License-Identifier: Apache-2.0
"""A store of SQLite that one process writes: of the metrics history, and of the events."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def prepare(
    store: sqlite3.Connection, tables: str, version: int, *, cache_kib: int, log_bytes: int
) -> None:
    """Set the store up, and make its `tables` where it is new; DatabaseError where it is damaged.

    `version` is of the tables: one with another is not ours to write.
    """
    store.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file
    store.execute("PRAGMA journal_mode = WAL")
    store.execute("PRAGMA synchronous = NORMAL")
    store.execute(f"PRAGMA cache_size = -{cache_kib}")
    store.execute(f"PRAGMA journal_size_limit = {log_bytes}")
    [known] = store.execute("PRAGMA user_version").fetchone()
    if known == 0:
        store.executescript(f"BEGIN; {tables} PRAGMA user_version = {version}; COMMIT")
    [result] = store.execute("PRAGMA quick_check (1)").fetchone()
    if result != "ok":
        raise sqlite3.DatabaseError(result)
    if known not in {0, version}:
        raise sqlite3.DatabaseError(f"its format is {known}, not {version}")


def used_bytes(store: sqlite3.Connection) -> int:
    """Return the bytes that the store uses: free pages are used before the file grows."""
    sizes = ("page_count", "freelist_count", "page_size")
    pages, free, size = (store.execute(f"PRAGMA {name}").fetchone()[0] for name in sizes)
    return int((pages - free) * size)


def put_aside(file: Path) -> Path:
    """Put a damaged store out of the way, and return where it is; OSError."""
    aside = file.with_name(f"{file.name}.damaged")
    file.replace(aside)  # over an earlier one: they must not fill the disk
    for tail in ("-wal", "-shm"):
        file.with_name(file.name + tail).unlink(missing_ok=True)
    return aside


def storable(text: str) -> str:
    """Return `text` without halves of letters, which bytes that are no UTF-8 become."""
    return text.encode("utf-8", "backslashreplace").decode()
