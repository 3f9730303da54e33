# SPDX-License-Identifier: Apache-2.0
"""`cards` and `total` in gpushare.yaml: what holds for which card, and where it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.config import parse
from gpushare.settings import ConfigError, checked, show

FILE = Path("/etc/gpushare/gpushare.yaml")
TEXT = """\
max_shares: 9
cards:
  A100: {mode: shared, max_shares: 4}
  PCIE: {mode: exclusive, max_shares: 5}
  "1": {max_shares: 2}
  GPU-1:
    mode: any
  "10": {mode: exclusive}
namespaces:
  team: {total: {cards: 2, models: {A100: {memory: 8GiB}}}}
"""


@pytest.mark.parametrize(
    ("index", "uuid", "model", "mode", "max_shares"),
    [
        (0, "GPU-0", "H200", "any", 9),
        (0, "GPU-0", "a100-sxm4", "shared", 4),
        (0, "GPU-0", "A100-PCIE", "shared", 4),
        (0, "GPU-0", "V100-PCIE", "exclusive", 5),
        (1, "GPU-9", "A100-SXM4", "shared", 2),
        (1, "GPU-1", "A100-SXM4", "any", 2),
        (10, "GPU-9", "H200", "exclusive", 9),
        # A number is an index and no part of a model's name.
        (3, "GPU-3", "RTX 10", "any", 9),
    ],
)
def test_the_nearest_section_holds_key_by_key(
    index: int, uuid: str, model: str, mode: str, max_shares: int
) -> None:
    rule = parse(TEXT, FILE).rule_of(index, uuid, model)
    assert (rule.mode, rule.max_shares) == (mode, max_shares)


def test_where_it_is_said_is_known() -> None:
    where = parse(TEXT, FILE).rule_of(1, "GPU-1", "A100").where
    assert where == {
        "mode": "cards.GPU-1.mode, /etc/gpushare/gpushare.yaml:7",
        "max_shares": "cards.1.max_shares, /etc/gpushare/gpushare.yaml:5",
    }


def test_show_has_a_row_for_each_key() -> None:
    rows = {row.key: (row.value, row.origin) for row in show.node(checked(TEXT, FILE))}
    assert rows["cards.A100.mode"] == ("shared", f"{FILE}:3")
    assert rows["cards.GPU-1.mode"] == ("any", f"{FILE}:7")
    assert rows["namespaces.team.total.cards"] == (2, f"{FILE}:10")
    assert rows["namespaces.team.total.models.A100.memory"] == ("8GiB", f"{FILE}:10")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cards: {A100: {mode: whole}}", 'cards.A100.mode: "whole" is not one of its values'),
        ("cards: {A100: {max_shares: 0}}", "cards.A100.max_shares: 0 is too small"),
        ("cards: {A100: {share: 2}}", "cards.A100.share: no such key; did you mean max_shares"),
        ("cards: [A100]", "cards: a list is not a mapping"),
        ("users: {total: {memory: 4}}", "users.total.memory: 4 has no unit"),
        ("users: {total: {models: {T4: {memory: 4G}}}}", "users.total.models.T4.memory"),
        ("total: {cards: 1}", "total: no such key"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse(text, FILE)
    assert told in str(wrong.value)
