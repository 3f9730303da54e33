# SPDX-License-Identifier: Apache-2.0
"""Graphs: what is drawn for which figures, and where the figures are from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.cli.top.columns import width
from gpushare.cli.top.graph_source import GraphSource
from gpushare.cli.top.graphs import (
    RANGES,
    Graph,
    GraphPage,
    GraphPoint,
    GraphTarget,
    column_values,
    graph_lines,
    plot,
)
from gpushare.cli.top.keys import UiState, graph_target, press
from gpushare.cli.top.render import Size, fit
from gpushare.cli.top.snapshot import TopCard, TopSnapshot
from gpushare.errors import UserError
from gpushare.history.reader import HistoryReader
from tests.properties import any_text
from tests.unit.history.world import GIB, T0, UUIDS, Actor, record

from .made import TAKEN, card, container, machine

TRAIN = GraphTarget("train", 0, 600)
CARD = GraphTarget("", 0, 600)


def points(*values: float | None, step: float = 10.0) -> tuple[GraphPoint, ...]:
    """Return a point for each value that is known, of `step` seconds each."""
    return tuple(
        GraphPoint(at * step, (at + 1) * step, value, value)
        for at, value in enumerate(values)
        if value is not None
    )


def graph(*values: float | None, top: float = 100.0, peaks: bool = False) -> Graph:
    return Graph("CORES", "30 %", "40 %", top, points(*values), "good", peaks)


def page(until: float = 600.0, graphs: int = 4, title: str = "train on card 0") -> GraphPage:
    one = graph(*(at % 100 for at in range(60)))
    return GraphPage(TRAIN, title, "the last 10 minutes", until, (one,) * graphs)


def test_a_gap_is_empty_and_a_zero_is_not() -> None:
    values = column_values(graph(50.0, None, 0.0, 100.0), 0.0, 40.0, 4)
    assert values == [50.0, None, 0.0, 100.0]
    assert plot(values, 100.0, 2, unicode=True) == ["   █", "█ ▁█"]
    assert plot(values, 100.0, 2, unicode=False) == ["   #", "# _#"]


@settings(deadline=None)
@given(
    columns=st.integers(1, 200),
    lines=st.integers(1, 60),
    graphs=st.integers(1, 4),
    unicode=st.booleans(),
    title=any_text(60),
    alarm=st.sampled_from(["", "gpushared is not running: " + "x" * 200]),
)
def test_the_graphs_fit_every_terminal(
    columns: int, lines: int, graphs: int, unicode: bool, title: str, alarm: str
) -> None:
    size = Size(columns, lines, unicode)
    shown = [fit(line, size) for line in graph_lines(page(graphs=graphs, title=title), size, alarm)]
    texts = ["".join(part for part, _ in line) for line in shown]
    assert len(texts) <= lines
    assert all(width(line) <= columns for line in texts)
    assert all(line.isprintable() for line in texts)
    assert unicode or all(line.isascii() for line in texts)


def test_enter_shows_graphs_of_the_row_and_the_arrows_choose() -> None:
    state = UiState()
    assert graph_target(state, machine()) is None
    wanted = []
    for key in ("enter", "down", "right", "right", "left", "end"):
        state, _ = press(state, key, machine(), 3)
        wanted.append(graph_target(state, machine()))
    hour, six_hours = RANGES[1][0], RANGES[2][0]
    serve = GraphTarget("b" * 16, 0, 600)
    assert wanted == [
        CARD,
        serve,
        replace(serve, seconds=hour),
        replace(serve, seconds=six_hours),
        replace(serve, seconds=hour),
        GraphTarget("c" * 16, 1, hour),  # the last row is a process of notebook
    ]


# --- where the figures are from ---


def no_history() -> HistoryReader:
    raise UserError("there is no metrics history in /x yet")


def seen(at: float, used: float = 1.0, cores: float | None = 10.0, **more: Any) -> TopSnapshot:
    """Return a snapshot `at` seconds after TAKEN, with a container of `used` GiB."""
    row = container("train", used_bytes=int(used * GIB), cores_got=cores)
    shown = replace(card(non_tenant_bytes=0, **more), containers=(row,))
    return TopSnapshot(TAKEN + at, (shown,), (row,))


def shown(source: GraphSource, *snapshots: TopSnapshot) -> GraphPage:
    for snapshot in snapshots:
        found = source.with_graphs(snapshot, 1.0)
    assert found.graphs is not None
    return found.graphs


def test_without_a_history_the_graphs_have_what_top_has_seen() -> None:
    source = GraphSource(no_history)
    assert source.with_graphs(seen(0, 1), 1.0).graphs is None  # none is shown yet
    source.target = TRAIN
    made = shown(source, seen(1, 2, None), seen(60, 3))
    assert "as far as top has seen it since" in made.note
    assert "there is no metrics history in /x yet" in made.note
    assert [one.title for one in made.graphs] == ["MEMORY", "CORES", "CARD MEMORY", "CARD GPU"]
    memory, cores = made.graphs[:2]
    ends = [(round(one.end - TAKEN), round(one.end - one.start)) for one in memory.points]
    # 58 seconds without an answer are a gap.
    assert ends == [(0, 1), (1, 1), (60, 2)]
    assert [one.most / GIB for one in memory.points] == [1, 2, 3]
    assert (memory.now, memory.most, memory.top) == ("3.0/4.0 GiB", "3 GiB", 4 * GIB)
    assert [one.mean for one in cores.points] == [10.0, 10.0]  # not known: no point


def test_a_container_that_has_gone_has_no_graphs() -> None:
    source = GraphSource(no_history)
    source.target = TRAIN
    gone = replace(seen(1), containers=())
    assert source.with_graphs(gone, 1.0).graphs is None


@pytest.fixture
def history(tmp_path: Path) -> Callable[[], HistoryReader]:
    """An hour of a container: 1 GiB, then 3 GiB; with a gap."""
    actor = Actor("train", lambda at: (1 if at < 1800 else 3, 50, 0))
    record(tmp_path / "h", [actor], 3600.0, gaps=[(2000.0, 2600.0)])
    return lambda: HistoryReader(tmp_path / "h")


def of_history(at: float, used: float) -> TopSnapshot:
    """Return what top sees `at` seconds after the history began."""
    made = seen(0, used)
    cards: tuple[TopCard, ...] = (
        replace(card(uuid=UUIDS[0], non_tenant_bytes=0), containers=made.containers),
    )
    return replace(made, taken=T0 + at, cards=cards)


def test_the_history_is_read_and_continued_by_what_top_sees(
    history: Callable[[], HistoryReader],
) -> None:
    source = GraphSource(history)
    source.target = GraphTarget("train", 0, 3600)
    made = shown(source, of_history(3605, 2))
    assert made.note == "the last hour, from the metrics history"
    values = column_values(made.graphs[0], T0 + 5, T0 + 3605, 60)
    sizes = [None if value is None else value / GIB for value in values]
    assert sizes[:29] == [1.0] * 29
    assert sizes[34:42] == [None] * 8
    assert sizes[45:59] == [3.0] * 14
    last = made.graphs[0].points[-1]
    assert (last.end, last.most) == (T0 + 3605, 2 * GIB)
    assert [one.most for one in made.graphs] == ["3 GiB", "50 %", "3 GiB", "71 %"]
