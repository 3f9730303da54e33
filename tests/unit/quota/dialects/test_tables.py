# SPDX-License-Identifier: Apache-2.0
"""What holds of every table, and what each vendor's keys come to."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest

from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.parse import combine
from gpushare.quota.dialects.units import ByCard, ByContainer
from gpushare.quota.dialects.vendor_key import Dialect
from gpushare.quota.errors import BadValue
from gpushare.quota.keys import KEYS
from gpushare.quota.node_settings import APPLIED, NODE_SETTINGS
from tests.corpus import vendor_keys

CONFIGURATION = Path(__file__).parents[4] / "docs/reference/configuration.md"
SETTINGS = set(re.findall(r"^\| `([a-zA-Z_.]+)`", CONFIGURATION.read_text(), re.MULTILINE))
TOP = {setting.partition(".")[0] for setting in SETTINGS}

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


@every_dialect
def test_a_key_is_listed_once_per_source(dialect: Dialect) -> None:
    names = [(row.where, row.name, row.key) for row in dialect.rows]
    assert len(set(names)) == len(names)


@every_dialect
def test_a_row_translates_to_a_key_of_ours_or_names_a_substitute(dialect: Dialect) -> None:
    for row in dialect.rows:
        assert row.setting in NODE_SETTINGS or not row.setting
        assert row.instead.startswith(APPLIED) is bool(row.setting)
        assert row.key in KEYS or not row.key
        if row.role in {"record", "setting"}:
            assert not row.key
        elif not row.key:
            assert row.instead or row.requires, row.name


@every_dialect
def test_a_row_points_at_others_of_its_table(dialect: Dialect) -> None:
    names = {row.name for row in dialect.rows}
    assert {row.fraction_of for row in dialect.rows} <= names | {""}
    assert {row.requires for row in dialect.rows} <= names | {""}


@every_dialect
def test_every_setting_that_a_table_names_exists(dialect: Dialect) -> None:
    for row in dialect.rows:
        for said in re.findall(r"\b[a-z_]+\.[A-Za-z_.]+[a-z_]", row.instead):
            if said.partition(".")[0] in TOP:
                assert said in SETTINGS, row.name


@pytest.mark.parametrize("text", ["1", "", "x" * 4096, "9" * 400, "1\n2", "\u0661", "1,,2", "0=1g"])
@every_dialect
def test_a_text_of_another_system_is_an_amount_or_no_value(dialect: Dialect, text: str) -> None:
    for row in dialect.rows:
        with suppress(BadValue):
            amount = row.unit.read(text)
            assert amount is None or isinstance(amount, Fraction | str | ByCard | ByContainer)


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
