# SPDX-License-Identifier: Apache-2.0
"""What a snapshot has of the daemon's rows, and what folds, filters and orders leave of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare.cli.top.snapshot import TopContainer, TopSnapshot
from gpushare.cli.top.view import TableView, index, rows

from .made import card, container, machine


def names(snapshot: TopSnapshot, view: TableView) -> list[str]:
    return [row.shown.name for row in rows(snapshot, view) if isinstance(row.shown, TopContainer)]


@pytest.mark.parametrize(
    ("sort", "reverse", "order"),
    [
        ("name", False, ["a", "b", "c"]),
        ("name", True, ["c", "b", "a"]),
        ("cores", False, ["b", "a", "c"]),  # the largest first, what is not known last
        ("cores", True, ["c", "a", "b"]),
        ("policy", False, ["c", "a", "b"]),
        ("state", False, ["c", "a", "b"]),
    ],
)
def test_a_card_s_containers_are_in_the_order_of_a_column(
    sort: str, reverse: bool, order: list[str]
) -> None:
    containers = (
        container("b", cores_got=30.0, policy="fixed-share"),
        container("a", cores_got=10.0, policy="fixed-share"),
        container("c", cores_got=None, policy="best-effort", over_limit_bytes=1),
    )
    snapshot = TopSnapshot(0.0, (card(),), containers)
    assert names(snapshot, TableView(sort=sort, reverse=reverse)) == order


def test_when_the_selected_row_is_gone_the_one_in_its_place_is_selected() -> None:
    view = TableView(selected=("process", "gone", 0, 1), at=8)
    assert index(rows(machine(), view), view) == 8
    fewer = replace(view, filter="serve")
    assert index(rows(machine(), fewer), fewer) == 2
    assert index([], view) == 0
