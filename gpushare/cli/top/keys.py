# SPDX-License-Identifier: Apache-2.0
"""What each key does. Pure: a state and a key make a state, and perhaps something to be done.

The keys are nvitop's and htop's where those have one for it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli.table import printable
from gpushare.cli.top.columns import COLUMNS
from gpushare.cli.top.picture import Container, Process
from gpushare.cli.top.view import INTERVALS, View, index, rows
from gpushare.quota.keys import POLICIES

if TYPE_CHECKING:
    from gpushare.cli.top.picture import Picture
    from gpushare.cli.top.view import Row

SIGNALS: Final = ("TERM", "INT", "HUP", "USR1", "USR2", "STOP", "CONT", "KILL")
_LONGEST_ENTRY: Final = 64


class Mode(Enum):
    """What the keys are for at the moment."""

    TABLE = "table"
    HELP = "help"
    FILTER = "filter"
    SIGNAL = "signal"  # which one is asked for
    SET = "set"  # which policy and cores
    CONFIRM = "confirm"


class Do(Enum):
    """What is done outside."""

    QUIT = "quit"
    LOOK = "look"  # ask the daemon now
    REDRAW = "redraw"  # the whole screen anew


@dataclass(frozen=True)
class Signal:
    """Send a signal to a process of a container."""

    container: Container
    process: Process
    number: signal.Signals

    def __str__(self) -> str:
        """Return the question, without its mark."""
        who = f"{self.process.pid} {self.process.name} of {self.container.name}"
        return f"send {self.number.name} to {who}"


@dataclass(frozen=True)
class Change:
    """Give a container another policy, or other cores; None: as it is."""

    container: Container
    policy: str | None = None
    cores: int | None = None

    def __str__(self) -> str:
        """Return the question, without its mark."""
        policy = "" if self.policy is None else f" policy {self.policy}"
        cores = "" if self.cores is None else f" cores {self.cores}"
        return f"set {self.container.name}:{policy}{cores}"


Effect: TypeAlias = Do | Signal | Change | None


@dataclass(frozen=True)
class State:
    """All that a key may change. `entry` is what is being typed, `message` what the footer says."""

    view: View = field(default_factory=View)
    mode: Mode = Mode.TABLE
    entry: str = ""
    target: Row | None = None  # what SIGNAL and SET are about, whatever is selected since
    asked: Signal | Change | None = None  # waits for a yes
    message: str = ""
    may_change: bool = False


def press(state: State, key: str, picture: Picture, page: int) -> tuple[State, Effect]:
    """Return what `key` makes of `state`, and what is to be done outside.

    Keys are letters, or names: up, down, pageup, enter, esc, f1, ^l. `page` is how many rows are
    shown.
    """
    if state.mode is Mode.HELP:
        return replace(state, mode=Mode.TABLE), None
    if state.mode is Mode.FILTER:
        return _filter(state, key), None
    if state.mode in {Mode.SIGNAL, Mode.SET}:
        return _entered(state, key), None
    if state.mode is Mode.CONFIRM:
        asked = replace(state, mode=Mode.TABLE, asked=None, entry="")
        return (asked, state.asked) if key in {"y", "Y"} else (_say(asked, "nothing done"), None)
    return _table(replace(state, message=""), key, picture, page)


def prompt(state: State) -> str:
    """Return what the footer asks, empty where it asks nothing."""
    if state.mode is Mode.FILTER:
        return f"/{state.view.filter}"
    if state.mode is Mode.SIGNAL:
        return f"signal ({' '.join(SIGNALS)}; Enter alone: TERM; Esc: none): {state.entry}"
    if state.mode is Mode.SET:
        return f"policy and cores (e.g. burst-share 40; Esc: as they are): {state.entry}"
    if state.mode is Mode.CONFIRM:
        return f"{printable(str(state.asked))}? y/n"
    return ""


def _table(state: State, key: str, picture: Picture, page: int) -> tuple[State, Effect]:
    if key in {"q", "Q", "f10"}:
        return state, Do.QUIT
    if key in {"f5", "^l"}:
        return state, Do.REDRAW
    if key in {"h", "?", "f1"}:
        return replace(state, mode=Mode.HELP), None
    if key in {"/", "\\", "f3", "f4"}:
        return replace(state, mode=Mode.FILTER), None
    if key in {"k", "f9", "p"}:
        return _change(state, key, picture), None
    found = rows(picture, state.view)
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
    return replace(state, view=changed(state.view)), None if key not in {"+", "-"} else Do.LOOK


_STEPS: Final = {"up": -1, "down": 1, "pageup": -1, "pagedown": 1}
#: None: the other way than it is.
_FOLDS: Final[dict[str, bool | None]] = {
    "enter": None,
    " ": None,
    "left": True,
    "right": False,
}


def _at(state: State, found: list[Row], at: int) -> State:
    if not found:
        return state
    at = max(0, min(at, len(found) - 1))
    return replace(state, view=replace(state.view, selected=found[at].ident, at=at))


def _fold(state: State, found: list[Row], wanted: bool | None) -> State:
    """Fold the selected row; where there is nothing beneath it, the one that it is beneath."""
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


def _filter(state: State, key: str) -> State:
    if key == "esc":
        return replace(state, mode=Mode.TABLE, view=replace(state.view, filter=""))
    if key == "enter":
        return replace(state, mode=Mode.TABLE)
    return replace(state, view=replace(state.view, filter=_typed(state.view.filter, key)))


def _typed(text: str, key: str) -> str:
    if key == "backspace":
        return text[:-1]
    if key == "^u":
        return ""
    return (text + key)[:_LONGEST_ENTRY] if len(key) == 1 and key.isprintable() else text


def _change(state: State, key: str, picture: Picture) -> State:
    if not state.may_change:
        return _say(state, "only looks: start it with --allow-changes to change anything")
    row = _selected(state, picture)
    container = None if row is None else row.owner or row.shown
    if row is None or not isinstance(container, Container):
        return _say(state, "select a container first, or one of its processes")
    if key == "p":
        return replace(state, mode=Mode.SET, entry="", target=row)
    if not isinstance(row.shown, Process):
        return _say(state, "select a process first")
    return replace(state, mode=Mode.SIGNAL, entry="", target=row)


def _entered(state: State, key: str) -> State:
    table = replace(state, mode=Mode.TABLE, entry="", target=None)
    if key == "esc" or state.target is None:
        return _say(table, "nothing done")
    if key != "enter":
        return replace(state, entry=_typed(state.entry, key))
    make = _signal if state.mode is Mode.SIGNAL else _set
    try:
        return replace(table, mode=Mode.CONFIRM, asked=make(state.target, state.entry))
    except ValueError as error:
        return _say(table, str(error))


def _signal(row: Row, entry: str) -> Signal:
    name = entry.strip().upper().removeprefix("SIG") or SIGNALS[0]
    if name not in SIGNALS:
        raise ValueError(f"{entry} is none of {' '.join(SIGNALS)}")
    assert row.owner is not None
    assert isinstance(row.shown, Process)
    return Signal(row.owner, row.shown, signal.Signals[f"SIG{name}"])


def _set(row: Row, entry: str) -> Change:
    container = row.owner or row.shown
    assert isinstance(container, Container)
    policy = cores = None
    for word in entry.replace(",", " ").replace("%", " ").split():
        if word.isdecimal() and 1 <= int(word) <= 100:
            cores = int(word)
        elif word in POLICIES:
            policy = word
        else:
            raise ValueError(f"{word} is no policy ({', '.join(POLICIES)}) and no cores (1 to 100)")
    if policy is None and cores is None:
        raise ValueError("nothing done")
    return Change(container, policy, cores)


def _selected(state: State, picture: Picture) -> Row | None:
    found = rows(picture, state.view)
    return found[index(found, state.view)] if found else None


def _say(state: State, message: str) -> State:
    return replace(state, message=message)


def _next_sort(step: int) -> Callable[[View], View]:
    def change(view: View) -> View:
        keys = [column.key for column in COLUMNS if not (view.tree and column.flat_only)]
        at = keys.index(view.sort) if view.sort in keys else 0
        return replace(view, sort=keys[(at + step) % len(keys)], reverse=False)

    return change


def _interval(step: int) -> Callable[[View], View]:
    def change(view: View) -> View:
        near = min(range(len(INTERVALS)), key=lambda at: abs(INTERVALS[at] - view.interval))
        at = max(0, min(near + step, len(INTERVALS) - 1))
        return replace(view, interval=INTERVALS[at])

    return change


def _reversed(view: View) -> View:
    return replace(view, reverse=not view.reverse)


def _other_shape(view: View) -> View:
    return replace(view, tree=not view.tree)


_VIEWS: Final[dict[str, Callable[[View], View]]] = {
    **dict.fromkeys(("s", "o", ">", ".", "f6"), _next_sort(1)),
    **dict.fromkeys(("<", ","), _next_sort(-1)),
    **dict.fromkeys(("r", "I"), _reversed),
    "t": _other_shape,
    "i": lambda view: replace(view, detail=not view.detail),
    "esc": lambda view: replace(view, filter="", detail=False),
    "+": _interval(1),
    "-": _interval(-1),
}
