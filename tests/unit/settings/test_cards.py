# SPDX-License-Identifier: Apache-2.0
"""`cards` and `total` in gpushare.yaml: what applies to which card, and the line that sets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cli.config import node_rows
from gpushare.config import parse
from gpushare.settings import checked

FILE = Path("/etc/gpushare/gpushare.yaml")
TEXT = """\
max_tenants: 9
cards:
  A100: {allowed_mode: shared, max_tenants: 4}
  PCIE: {allowed_mode: exclusive, max_tenants: 5}
  "1": {max_tenants: 2}
  GPU-1:
    allowed_mode: any
  "10": {allowed_mode: exclusive}
namespaces:
  team: {max_per_node: {cards: 2, models: {A100: {memory: 8GiB}}}}
"""


@pytest.mark.parametrize(
    ("index", "uuid", "model", "mode", "max_tenants"),
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
    index: int, uuid: str, model: str, mode: str, max_tenants: int
) -> None:
    rule = parse(TEXT, FILE).rule_of(index, uuid, model)
    assert (rule.mode, rule.max_tenants) == (mode, max_tenants)


def test_the_line_of_each_value_is_known() -> None:
    where = parse(TEXT, FILE).rule_of(1, "GPU-1", "A100").where
    assert where == {
        "allowed_mode": "cards.GPU-1.allowed_mode, /etc/gpushare/gpushare.yaml:7",
        "max_tenants": "cards.1.max_tenants, /etc/gpushare/gpushare.yaml:5",
    }


def test_show_has_a_row_for_each_key() -> None:
    rows = {row.key: (row.value, row.origin) for row in node_rows(checked(TEXT, FILE))}
    assert rows["cards.A100.allowed_mode"] == ("shared", f"{FILE}:3")
    assert rows["cards.GPU-1.allowed_mode"] == ("any", f"{FILE}:7")
    assert rows["namespaces.team.max_per_node.cards"] == (2, f"{FILE}:10")
    assert rows["namespaces.team.max_per_node.models.A100.memory"] == ("8GiB", f"{FILE}:10")
