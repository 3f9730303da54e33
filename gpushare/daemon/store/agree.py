# SPDX-License-Identifier: Apache-2.0
"""What is true of a ledger and its copies, which the last daemon left: pure.

A copy is what was last acknowledged, its draft what was being changed (store/copies.py has the
order). So where there is no draft, a ledger that says something else has lost its end, as SQLite
does with a damaged write-ahead log, or has a wrong byte that its own check cannot see: the copy is
true. Where there is a draft the ledger says whether it was committed. Who was being released when
the daemon ended may be taken for promised once more; it is gone, and found to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.daemon.store.copies import Found
from gpushare.daemon.store.entry import Entry


@dataclass(frozen=True)
class Agreed:
    """The entries; whom the ledger had lost or had wrong; whose copy and row are both lost."""

    entries: Mapping[str, Entry]
    behind: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def agree(ledger: Mapping[str, Entry] | None, found: Found) -> Agreed:
    """Return what is true; `ledger` is None where it is damaged."""
    rows = {} if ledger is None else ledger
    entries: dict[str, Entry] = {}
    behind = []
    for key in sorted(rows.keys() | found.copies.keys() | found.drafts.keys()):
        row = rows.get(key)
        true = _true_of(key, row, found, is_readable=ledger is not None)
        if true is not None:
            entries[key] = true
        if true != row:
            behind.append(key)
    by_age = sorted(entries.values(), key=lambda entry: entry.created)
    return Agreed(
        {entry.key: entry for entry in by_age},
        tuple(behind),
        tuple(sorted(found.damaged - entries.keys())),
    )


def _true_of(key: str, row: Entry | None, found: Found, *, is_readable: bool) -> Entry | None:
    copy, draft = found.copies.get(key), found.drafts.get(key)
    if not is_readable:
        known = draft or copy
        return None if known is None else known.entry(None)
    if draft is not None:
        if row is not None and row == draft.entry(row):
            return row  # committed
        if row is None and copy is None:
            return None  # never committed, or released
    known = copy or draft
    return row if known is None else known.entry(row)
