# SPDX-License-Identifier: Apache-2.0
"""What each key does to what is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare.cli.top.keys import (
    InputMode,
    ScreenAction,
    UiState,
    press,
    prompt,
)
from gpushare.cli.top.snapshot import TopSnapshot
from gpushare.cli.top.view import INTERVALS, index, rows

from .made import machine

PAGE = 3


def typed(*keys: str, state: UiState | None = None, snapshot: TopSnapshot | None = None) -> UiState:
    """Return what `keys`, one after another, make of `state`."""
    state = state or UiState()
    for key in keys:
        state, _ = press(state, key, snapshot or machine(), PAGE)
    return state


def at(state: UiState) -> int:
    return index(rows(machine(), state.view), state.view)


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        (["down"], 1),
        (["down", "up"], 0),
        (["up"], 0),
        (["pagedown"], PAGE),
        (["end"], 8),
        (["end", "down"], 8),
        (["end", "pageup"], 8 - PAGE),
        (["end", "home"], 0),
    ],
)
def test_the_arrows_move_through_the_rows_and_stop_at_their_ends(keys: list[str], row: int) -> None:
    assert at(typed(*keys)) == row


def test_space_folds_a_card_and_unfolds_it() -> None:
    folded = typed(" ")
    assert len(rows(machine(), folded.view)) == 5
    assert len(rows(machine(), typed(" ", state=folded).view)) == 9
    # A process has nothing beneath it, so its container is folded; the last row of a list neither.
    assert len(rows(machine(), typed("end", "left").view)) == 7
    assert typed("t", "end", "up", "up").view.folded == frozenset()


def test_no_row_is_selected_where_there_is_none() -> None:
    none = replace(machine(), cards=(), containers=())
    assert typed("down", "home", " ", snapshot=none) == UiState()


def test_s_selects_the_next_sort_column_and_r_reverses_the_order() -> None:
    assert typed("s").view.sort == "memory"
    assert typed("o", ">").view.sort == "cores"
    assert typed("s", "<").view.sort == "name"
    assert typed("<").view.sort == "command"
    assert typed("r").view.reverse
    assert not typed("r", "s").view.reverse
    assert "card" not in {typed(*"s" * number).view.sort for number in range(20)}
    assert "card" in {typed("t", *"s" * number).view.sort for number in range(20)}


def test_a_filter_is_typed_and_escape_takes_it_away() -> None:
    state = typed("/", *"trax", "backspace")
    assert (state.mode, state.view.filter, prompt(state)) == (InputMode.FILTER, "tra", "/tra")
    kept = typed("enter", state=state)
    assert (kept.mode, kept.view.filter) == (InputMode.TABLE, "tra")
    assert typed("esc", state=state).view.filter == ""
    assert typed("esc", state=kept).view.filter == ""
    assert typed("/", "q").mode is InputMode.FILTER
    assert typed("/", *"tra", "^u").view.filter == ""


def test_help_and_graphs_lead_back_to_the_table() -> None:
    assert typed("?", "z").mode is InputMode.TABLE
    assert typed("enter", "q").mode is InputMode.TABLE
    assert typed("enter", "z").mode is InputMode.GRAPHS
    assert typed("z") == UiState()
    assert press(UiState(), "^l", machine(), PAGE)[1] is ScreenAction.REDRAW


def test_the_interval_is_one_of_a_list_and_takes_effect_at_once() -> None:
    for key, last in (("+", INTERVALS[-1]), ("-", INTERVALS[0])):
        assert typed(*key * len(INTERVALS)).view.interval == last
        assert press(UiState(), key, machine(), PAGE)[1] is ScreenAction.POLL
