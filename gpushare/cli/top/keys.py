# SPDX-License-Identifier: Apache-2.0
"""The effect of each key. Pure: a state and a key result in a state and, for some keys, an effect.

Most are those of htop. The help page names those that differ from nvitop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli.top.columns import COLUMNS
from gpushare.cli.top.graphs import RANGES, GraphTarget
from gpushare.cli.top.snapshot import TopCard, TopContainer
from gpushare.cli.top.view import INTERVALS, TableView, index, rows

if TYPE_CHECKING:
    from gpushare.cli.top.snapshot import TopSnapshot
    from gpushare.cli.top.view import ViewRow

_LONGEST_ENTRY: Final = 64

#: The help page.
HELP: Final = """\
up down PgUp PgDn Home End   move
Enter                        show graphs of the selected container or card
Space, left, right           fold or unfold a card or container
t                            switch between a tree and a list of containers
s o > F6, <                  sort by the next or previous column
r I                          reverse the sort order
/ F4                         show only names that contain a text; Esc: all
i                            show details of the selected row
+ -                          increase or decrease the refresh interval
F5 ^L                        redraw the screen
h ? F1, q F10 ^C             show this page, quit

MEMORY  used/quota (of a card: used/capacity); with a+b GiB, it can burst by b
CORES%  share of the card in the last second; ~ driver's figure, ? unknown
10s 60s the same over 10 and 60 seconds
QUOTA%  requested share; of a card: allocated share
THROT%  fraction of the last second spent waiting for the card
STATE   over quota; evicted; hung: work seems never to complete; warning: see i

In nvitop, r refreshes, / reverses the order, I and ^C interrupt a process,
Space tags, a column follows o, and left and right scroll.
"""


class InputMode(Enum):
    """The view that the keys currently apply to."""

    TABLE = "table"
    HELP = "help"
    GRAPHS = "graphs"
    FILTER = "filter"


class ScreenAction(Enum):
    """An effect of a key beside the view."""

    QUIT = "quit"
    POLL = "poll"  # query the daemon now
    REDRAW = "redraw"  # the whole screen


Effect: TypeAlias = ScreenAction | None


@dataclass(frozen=True)
class UiState:
    """All that a key may change."""

    view: TableView = field(default_factory=TableView)
    mode: InputMode = InputMode.TABLE
    range: int = 0  # of RANGES, of the graphs


def press(state: UiState, key: str, snapshot: TopSnapshot, page: int) -> tuple[UiState, Effect]:
    """Return the state after `key`, and its effect.

    Keys are characters or names: up, down, pageup, enter, esc, f1, ^l. `page` is the number of
    visible rows.
    """
    if state.mode is InputMode.HELP:
        return replace(state, mode=InputMode.TABLE), None
    if state.mode is InputMode.GRAPHS:
        return _graphs(state, key, snapshot, page)
    if state.mode is InputMode.FILTER:
        return _filter(state, key), None
    return _table(state, key, snapshot, page)


def prompt(state: UiState) -> str:
    """Return the prompt in the footer, empty if there is none."""
    return f"/{state.view.filter}" if state.mode is InputMode.FILTER else ""


def _table(state: UiState, key: str, snapshot: TopSnapshot, page: int) -> tuple[UiState, Effect]:
    if key in {"q", "Q", "f10"}:
        return state, ScreenAction.QUIT
    if key in {"f5", "^l"}:
        return state, ScreenAction.REDRAW
    if key in {"h", "?", "f1"}:
        return replace(state, mode=InputMode.HELP), None
    if key in {"/", "\\", "f3", "f4"}:
        return replace(state, mode=InputMode.FILTER), None
    found = rows(snapshot, state.view)
    if key == "enter":
        return (replace(state, mode=InputMode.GRAPHS) if found else state), None
    if key in _STEPS:
        at = index(found, state.view) + _STEPS[key] * (page if key.startswith("page") else 1)
        return _at(state, found, at), None
    if key in {"home", "g", "^a"}:
        return _at(state, found, 0), None
    if key in {"end", "G", "^e"}:
        return _at(state, found, len(found) - 1), None
    if key in _FOLDS:
        return _fold(state, found, _FOLDS[key]), None
    changed = _VIEWS.get(key)
    if changed is None:
        return state, None
    return replace(state, view=changed(state.view)), None if key not in {
        "+",
        "-",
    } else ScreenAction.POLL


def _graphs(state: UiState, key: str, snapshot: TopSnapshot, page: int) -> tuple[UiState, Effect]:
    if key in {"q", "Q", "esc", "enter"}:
        return replace(state, mode=InputMode.TABLE), None
    if key in _RANGE_STEPS:
        wanted = max(0, min(state.range + _RANGE_STEPS[key], len(RANGES) - 1))
        return replace(state, range=wanted), None
    if key in _GRAPH_KEYS:
        return _table(state, key, snapshot, page)
    return state, None


_RANGE_STEPS: Final = {"left": -1, "right": 1}
#: The keys that have the same effect as in the table.
_GRAPH_KEYS: Final = frozenset(
    {"up", "down", "pageup", "pagedown", "home", "end", "+", "-", "f5", "^l", "h", "?", "f1", "f10"}
)
_STEPS: Final = {"up": -1, "down": 1, "pageup": -1, "pagedown": 1}
#: None: toggle.
_FOLDS: Final[dict[str, bool | None]] = {
    " ": None,
    "left": True,
    "right": False,
}


def _at(state: UiState, found: list[ViewRow], at: int) -> UiState:
    if not found:
        return state
    at = max(0, min(at, len(found) - 1))
    return replace(state, view=replace(state.view, selected=found[at].ident, at=at))


def _fold(state: UiState, found: list[ViewRow], wanted: bool | None) -> UiState:
    """Fold the selected row, or its parent if it has no rows beneath it."""
    if not found:
        return state
    at = index(found, state.view)
    depth = found[at].depth
    while found[at].folds is None and depth and found[at].depth >= depth:
        at -= 1
    row = found[at]
    if row.folds is None:
        return state
    folded = not row.folds if wanted is None else wanted
    kept = state.view.folded - {row.ident}
    view = replace(state.view, folded=kept | {row.ident} if folded else kept)
    return _at(replace(state, view=view), found, at)


def _filter(state: UiState, key: str) -> UiState:
    if key == "esc":
        return replace(state, mode=InputMode.TABLE, view=replace(state.view, filter=""))
    if key == "enter":
        return replace(state, mode=InputMode.TABLE)
    return replace(state, view=replace(state.view, filter=_typed(state.view.filter, key)))


def _typed(text: str, key: str) -> str:
    if key == "backspace":
        return text[:-1]
    if key == "^u":
        return ""
    return (text + key)[:_LONGEST_ENTRY] if len(key) == 1 and key.isprintable() else text


def _selected(state: UiState, snapshot: TopSnapshot) -> ViewRow | None:
    found = rows(snapshot, state.view)
    return found[index(found, state.view)] if found else None


def graph_target(state: UiState, snapshot: TopSnapshot) -> GraphTarget | None:
    """Return what the graphs on the screen are of, None if there are none."""
    row = _selected(state, snapshot) if state.mode is InputMode.GRAPHS else None
    if row is None:
        return None
    shown = row.owner or row.shown
    seconds, _ = RANGES[state.range]
    if isinstance(shown, TopContainer):
        return GraphTarget(shown.key, shown.card, seconds)
    assert isinstance(shown, TopCard)
    return GraphTarget("", shown.index, seconds)


def _next_sort(step: int) -> Callable[[TableView], TableView]:
    def change(view: TableView) -> TableView:
        keys = [column.key for column in COLUMNS if not (view.tree and column.flat_only)]
        at = keys.index(view.sort) if view.sort in keys else 0
        return replace(view, sort=keys[(at + step) % len(keys)], reverse=False)

    return change


def _interval(step: int) -> Callable[[TableView], TableView]:
    def change(view: TableView) -> TableView:
        nearest = min(range(len(INTERVALS)), key=lambda at: abs(INTERVALS[at] - view.interval))
        at = max(0, min(nearest + step, len(INTERVALS) - 1))
        return replace(view, interval=INTERVALS[at])

    return change


def _reversed(view: TableView) -> TableView:
    return replace(view, reverse=not view.reverse)


def _toggle_tree(view: TableView) -> TableView:
    return replace(view, tree=not view.tree)


_VIEWS: Final[dict[str, Callable[[TableView], TableView]]] = {
    **dict.fromkeys(("s", "o", ">", ".", "f6"), _next_sort(1)),
    **dict.fromkeys(("<", ","), _next_sort(-1)),
    **dict.fromkeys(("r", "I"), _reversed),
    "t": _toggle_tree,
    "i": lambda view: replace(view, detail=not view.detail),
    "esc": lambda view: replace(view, filter="", detail=False),
    "+": _interval(1),
    "-": _interval(-1),
}
