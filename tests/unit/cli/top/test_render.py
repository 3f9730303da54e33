# SPDX-License-Identifier: Apache-2.0
"""The screen, at every size."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.cli.text import local_time
from gpushare.cli.top.columns import COLUMNS, width
from gpushare.cli.top.render import Frame, Size, details, frame, meters, plain_text
from gpushare.cli.top.snapshot import TopContainer, TopSnapshot, snapshot_of
from gpushare.cli.top.view import TableView, rows
from tests.unit.cli.conftest import CARD, tenant
from tests.unit.rows import GIB

from .made import TAKEN, card, container, machine

FOOTER = (("the footer", ""),)


def screen(
    columns: int = 80,
    lines: int = 24,
    view: TableView | None = None,
    *,
    snapshot: TopSnapshot | None = None,
    unicode: bool = True,
    alarm: str = "",
) -> Frame:
    size = Size(columns, lines, unicode)
    return frame(snapshot or machine(), view or TableView(), size, alarm=alarm, footer=FOOTER)


def text(shown: Frame) -> list[str]:
    return ["".join(part for part, _ in line).rstrip() for line in shown.lines]


def styles(shown: Frame, part: str) -> set[str]:
    return {style for line in shown.lines for said, style in line if part in said}


@settings(deadline=None)
@given(
    columns=st.integers(1, 200),
    lines=st.integers(1, 60),
    detail=st.booleans(),
    tree=st.booleans(),
    unicode=st.booleans(),
    alarm=st.sampled_from(["", "gpushared is not running: " + "x" * 200]),
    sort=st.sampled_from([column.key for column in COLUMNS]),
    name=st.text(max_size=60),
)
def test_nothing_is_wider_or_higher_than_the_terminal(
    columns: int,
    lines: int,
    detail: bool,
    tree: bool,
    unicode: bool,
    alarm: str,
    sort: str,
    name: str,
) -> None:
    snapshot = replace(machine(), containers=(container(name), *machine().containers))
    view = TableView(detail=detail, tree=tree, sort=sort, filter="")
    shown = screen(columns, lines, view, snapshot=snapshot, unicode=unicode, alarm=alarm)
    assert len(shown.lines) <= lines
    assert all(width(line) <= columns for line in text(shown))
    assert all(part.isprintable() for line in shown.lines for part, _ in line)
    assert unicode or all(line.isascii() for line in text(shown))


def test_on_eighty_columns_there_are_memory_share_isolation_and_state() -> None:
    lines = text(screen())
    assert lines[3].split() == ["NAME▲", "MEMORY", "CORES%", "QUOTA%", "ISOLATION", "STATE"]
    assert lines[7].split() == ["▾", "train", "3.9/4.0", "GiB", "29.8", "30", "interposer", "ok"]
    assert lines[8].split() == ["4242", "(1)", "python", "3.9", "GiB", "29"]


def evicted_machine(**more: Any) -> TopSnapshot:
    made: Any = tenant("notebook", 0, 24, id="d" * 64, key="d" * 16)
    made["eviction"] = {
        "state": "evicted",
        "since": TAKEN - 3600,
        "cause": "idle",
        "reason": "train had no room",
        "bytes": 24 * GIB,
        "from_cards": [0],
        "held": False,
        "waits_since": None,
        "error": "",
        **more,
    }
    made["warnings"] = ["notebook uses CUDA"] if made["eviction"]["waits_since"] else []
    one: Any = {**CARD, "evicted_bytes": 24 * GIB, "evicted_tenants": 1}
    return snapshot_of([one], [tenant("train", 3.9, 4), made], TAKEN)


def _name_of(shown: object) -> str:
    return shown.name if isinstance(shown, TopContainer) else ""


def clock(seconds: float) -> str:
    return local_time(seconds).partition(" ")[2]


@pytest.mark.parametrize(
    ("more", "cell", "line"),
    [
        ({}, "evicted", "evicted since {since}, 24 GiB in host memory: notebook"),
        (
            {"waits_since": TAKEN - 60},
            "evicted, waits",
            "evicted since {since}, waits since {waits}, 24 GiB in host memory: notebook",
        ),
        ({"state": "restoring"}, "restoring", "restoring since {since}, 24 GiB in all: notebook"),
        (
            {"state": "failed"},
            "eviction failed",
            "eviction failed at {since}, 24 GiB lost: notebook",
        ),
    ],
)
def test_an_evicted_container_is_shown_with_its_memory_and_since_when(
    more: Any, cell: str, line: str
) -> None:
    snapshot = evicted_machine(**more)
    lines = text(screen(80, snapshot=snapshot))
    said = line.format(since=clock(TAKEN - 3600), waits=clock(TAKEN - 60))
    assert said in lines
    assert len(said) <= 80
    row = next(one for one in lines if one.lstrip("▾ !").startswith("notebook"))
    assert cell in row
    assert said in plain_text(snapshot, TableView(), unicode=True)
    [found] = [one for one in rows(snapshot, TableView()) if _name_of(one.shown) == "notebook"]
    assert said.removesuffix(": notebook") in details(found)


@given(columns=st.integers(40, 200), lines=st.integers(2, 40), tree=st.booleans())
def test_isolation_and_state_do_not_disappear_silently(
    columns: int, lines: int, tree: bool
) -> None:
    shown = text(screen(columns, lines, TableView(tree=tree)))
    heading = next(line for line in shown if line.startswith("NAME"))
    said = shown[0] if lines >= 5 else shown[-1]
    if columns >= 80:
        assert "without" not in said
    assert ("STATE" in heading) == ("STATE" not in said)
    assert ("ISOLATION" in heading) == ("ISOLATION" not in said)


def test_a_cards_problem_is_shown_above_its_bars() -> None:
    sick = card(health="GPU is lost: XID 79")
    line = "".join(part for part, _ in meters([sick], 60, unicode=True)[0])
    assert line.startswith("0 NVIDIA H200  GPU is lost: XID 79  MEM")


def test_with_many_cards_the_unhealthy_ones_keep_their_bars() -> None:
    cards = tuple(card(number, health="lost" if number == 14 else "ok") for number in range(16))
    lines = text(screen(snapshot=TopSnapshot(0.0, cards)))
    assert lines[1].startswith("14 NVIDIA H200  lost")
    assert lines[6].startswith("NAME")


def test_the_selected_row_is_always_seen() -> None:
    snapshot = TopSnapshot(
        0.0, (card(),), tuple(container(f"c{number:03}") for number in range(100))
    )
    view = TableView()
    for number in (*range(100), 0, 50):
        view = replace(view, selected=("container", f"c{number:03}", 0))
        shown = screen(lines=20, view=view, snapshot=snapshot)
        assert styles(shown, f"c{number:03}") == {"selected"}
        view = replace(view, top=shown.top)


def test_a_tenant_over_quota_or_hung_is_marked() -> None:
    over = container("over", over_limit_bytes=1)
    hung = container("stuck", compute={"is_hung": True})
    snapshot = TopSnapshot(0.0, (card(),), (over, hung, container("well")))
    shown = screen(140, snapshot=snapshot)
    assert styles(shown, "! over") == styles(shown, "! stuck") == {"bad"}
    assert "! well" not in "\n".join(text(shown))
    assert [re.split(r" {2,}", line.strip())[-1] for line in text(shown)[4:7]] == [
        "over quota",
        "hung",
        "ok",
    ]


def test_data_that_is_out_of_date_is_marked() -> None:
    shown = screen(alarm="no new data: gpushared is not running")
    assert text(shown)[1] == "no new data: gpushared is not running"
    assert styles(shown, "no new data") == {"bad"}
    assert "train" in "\n".join(text(shown))


def test_the_pane_shows_more_of_the_selected_row() -> None:
    def pane(*selected: str | int) -> str:
        return "\n".join(text(screen(view=TableView(detail=True, selected=selected))))

    train = pane("container", "0123456789abcdef", 0)
    assert "quota    cores 30 env; memory 4GiB env" in train
    assert "quota 30 %, used 29.8 % in 1 s, 30.1 in 10 s" in train
    assert "share    fixed-share 30.0 %, offline 5" in train
    assert "process 701 jupyter  of notebook, card 1" in pane("process", "c" * 16, 1, 701)
    assert "card 1  NVIDIA A100  GPU-1" in pane("card", 1)


def test_the_pane_is_not_worth_the_half_of_a_low_terminal() -> None:
    assert "quota" not in "\n".join(text(screen(lines=12, view=TableView(detail=True))))


def test_starts_that_wait_for_room_are_above_the_table() -> None:
    waiting = tuple(f"job-{number} has waited 3 min for 8 GiB" for number in range(5))
    lines = text(screen(lines=40, snapshot=replace(machine(), waiting=waiting)))
    assert [line for line in lines if "wait" in line] == [
        *waiting[:3],
        "2 more starts wait for room (gpushare queue)",
    ]
