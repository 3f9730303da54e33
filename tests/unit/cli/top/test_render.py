# SPDX-License-Identifier: Apache-2.0
"""The screen, at every size; some are recorded in frames.txt.

`python -m tests.unit.cli.top.test_render` writes that file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.cli.top.columns import COLUMNS, width
from gpushare.cli.top.render import Frame, Size, frame
from gpushare.cli.top.snapshot import TopSnapshot, snapshot_of
from gpushare.cli.top.view import TableView
from tests.properties import any_text
from tests.unit.cli.conftest import CARD, in_utc, tenant
from tests.unit.cli.test_transcripts import EVICTED
from tests.unit.rows import GIB

from .made import TAKEN, card, container, machine

RECORDED = Path(__file__).with_name("frames.txt")
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


def evicted(**more: Any) -> TopSnapshot:
    made: Any = tenant("notebook", 0, 24, id="d" * 64, key="d" * 16)
    hour = {"since": TAKEN - 3600, "reason": "train had no room"}
    made["eviction"] = {**EVICTED, **hour, **more}
    made["warnings"] = ["notebook uses CUDA"] if made["eviction"]["waits_since"] else []
    one: Any = {**CARD, "evicted_bytes": 24 * GIB, "evicted_tenants": 1}
    return snapshot_of([one], [tenant("train", 3.9, 4), made], TAKEN)


def pane(*selected: str | int) -> TableView:
    return TableView(detail=True, selected=selected)


def frames() -> Iterator[Frame]:
    """Yield the screens that are recorded."""
    yield screen()
    yield screen(unicode=False, alarm="no new data: gpushared is not running")
    for selected in (("container", "0123456789abcdef", 0), ("process", "c" * 16, 1, 701)):
        yield screen(view=pane(*selected))
    yield screen(view=pane("card", 1))
    yield screen(lines=12, view=TableView(detail=True))
    yield screen(snapshot=evicted(), view=pane("container", "d" * 16, 0))
    yield screen(snapshot=evicted(), view=pane("card", 0))
    for more in ({"waits_since": TAKEN - 60}, {"state": "restoring"}, {"state": "failed"}):
        yield screen(snapshot=evicted(**more))
    cards = tuple(card(number, health="lost" if number == 14 else "ok") for number in range(16))
    yield screen(snapshot=TopSnapshot(0.0, cards))
    marked = (
        container("over", over_limit_bytes=1),
        container("stuck", compute={"is_hung": True}),
        container("well"),
    )
    lost = TopSnapshot(0.0, (card(health="GPU is lost: XID 79"),), marked)
    yield screen(140, snapshot=lost)
    yield screen(snapshot=lost, view=pane("container", "stuck", 0))
    waiting = tuple(f"job-{number} has waited 3 min for 8 GiB" for number in range(5))
    yield screen(lines=40, snapshot=replace(machine(), waiting=waiting))


def recorded() -> str:
    """Return the screens, in UTC; a line that is marked as bad ends with `!`."""

    def drawn(line: Sequence[tuple[str, str]]) -> str:
        shown = "".join(part for part, _ in line).rstrip()
        return f"{shown}  !" if any(style == "bad" for _, style in line) else shown

    with in_utc():
        screens = ["\n".join(map(drawn, each.lines)) for each in frames()]
    return "\n\n".join(screens) + "\n"


def test_the_screens_are_as_recorded() -> None:
    assert recorded() == RECORDED.read_text()


@settings(deadline=None)
@given(
    columns=st.integers(1, 200),
    lines=st.integers(1, 60),
    detail=st.booleans(),
    tree=st.booleans(),
    unicode=st.booleans(),
    alarm=st.sampled_from(["", "gpushared is not running: " + "x" * 200]),
    sort=st.sampled_from([column.key for column in COLUMNS]),
    name=any_text(60),
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


if __name__ == "__main__":
    sys.exit(0 if RECORDED.write_text(recorded()) else 1)
