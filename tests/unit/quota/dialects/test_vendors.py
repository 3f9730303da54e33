# SPDX-License-Identifier: Apache-2.0
"""What each vendor's keys come to: the canonical request, or why they are refused."""

from __future__ import annotations

from gpushare.quota.dialects import DIALECTS, combine
from tests.corpus import vendor_keys


def test_nodes_make_of_vendors_keys_what_is_expected() -> None:
    """After a change that is meant, `python -m tests.corpus update` writes it."""
    assert vendor_keys.text() == vendor_keys.FILE.read_text(encoding="utf-8")


def test_every_key_is_among_them_and_has_a_meaning() -> None:
    """But for the settings and the annotations of nodes."""
    tried = set()
    for keys in vendor_keys.containers():
        tried |= {id(value.row) for value in keys.values}
        for one in combine(keys.values, strict=False, position=keys.position):
            if not one.layer and not one.problems:
                assert all(one.meant.get(word.name) for word in one.words), keys.line
    rows = [(name, row) for name, dialect in DIALECTS.items() for row in dialect.rows]
    assert not [
        (name, row.where, row.name)
        for name, row in rows
        if id(row) not in tried and row.role != "setting" and row.where != "node annotation"
    ]
