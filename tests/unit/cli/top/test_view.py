# SPDX-License-Identifier: Apache-2.0
"""What a snapshot has of the daemon's rows, and what folds, filters and orders leave of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from gpushare.cli.top.snapshot import TopCard, TopContainer, TopSnapshot, snapshot_of
from gpushare.cli.top.view import TableView, index, rows
from tests.unit.cli.conftest import CARD, tenant
from tests.unit.rows import GIB

from .made import TAKEN, card, container, machine


def shown(snapshot: TopSnapshot, view: TableView) -> list[str]:
    """Return the rows as indented names."""
    lines = []
    for row in rows(snapshot, view):
        one = row.shown
        what = f"card {one.index}" if isinstance(one, TopCard) else one.name
        lines.append("  " * row.depth + what)
    return lines


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


def test_a_filter_leaves_containers_and_processes_of_that_name() -> None:
    assert shown(machine(), TableView(filter="SERV")) == ["card 0", "  serve", "    python"]
    assert shown(machine(), TableView(filter="kernel")) == ["card 1", "  notebook", "    kernel"]
    assert shown(machine(), TableView(filter="702")) == ["card 1", "  notebook", "    kernel"]
    assert names(machine(), TableView(filter="cccccc")) == ["notebook"]
    assert names(machine(), TableView(filter="burst")) == ["serve"]
    assert shown(machine(), TableView(filter="nobody")) == []


def test_the_selected_row_is_found_wherever_it_went() -> None:
    view = TableView(selected=("container", "0123456789abcdef", 0), at=3)
    found = rows(machine(), view)
    assert found[index(found, view)].ident == view.selected
    backwards = replace(view, reverse=True)
    found = rows(machine(), backwards)
    assert index(found, backwards) == 1


def test_when_the_selected_row_is_gone_the_one_in_its_place_is_selected() -> None:
    view = TableView(selected=("process", "gone", 0, 1), at=8)
    assert index(rows(machine(), view), view) == 8
    fewer = replace(view, filter="serve")
    assert index(rows(machine(), fewer), fewer) == 2
    assert index([], view) == 0


def test_a_container_on_two_cards_is_on_each_with_the_processes_that_are_there() -> None:
    both = tenant("train", 1, 2)
    second: Any = copy.deepcopy(both["cards"][0])
    second["index"], second["compute"]["cores_used"]["1s"] = 1, 7.0
    both["cards"].append(second)
    quiet: Any = {"pid": 9, "container_pid": 3, "name": "quiet", "bytes": None, "cards": []}
    both["processes"] = [
        {
            **both["processes"][0],
            "cards": [{"index": 1, "bytes": GIB, "utilization": 6}],
        },
        quiet,
    ]
    other: Any = {**CARD, "index": 1}
    shown = snapshot_of([CARD, other], [both], TAKEN)
    assert [(one.card, one.cores("1s").value) for one in shown.containers] == [(0, 29.8), (1, 7.0)]
    assert [process.name for process in shown.on(0)[0].processes] == ["quiet"]
    assert [(one.pid, one.bytes, one.utilization) for one in shown.on(1)[0].processes] == [
        (4242, GIB, 6)
    ]
