# SPDX-License-Identifier: Apache-2.0
"""Tables on a terminal: what fits, colors, and what a pipe has."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli import text
from tests.emulator import Emulator
from tests.unit.cli.conftest import CARD, Cli, tenant
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows

NAMES = ("one", "two", "three", "four")


CELL = st.text("abc ", max_size=40).map(str.strip)


def terminal(
    daemon: AnsweringDaemon, words: tuple[str, ...], columns: int = 80, **environment: str
) -> Emulator:
    env = {"GPUSHARE_SOCKET": str(daemon.path), "NO_COLOR": "", **environment}
    return Emulator([sys.executable, "-m", "gpushare.cli", *words], env, columns=columns)


def shown(daemon: AnsweringDaemon, *words: str, columns: int = 80) -> tuple[list[str], bytes]:
    """Return the lines that a user sees, and all that the command wrote."""
    with terminal(daemon, words, columns) as screen:
        screen.end()
        return screen.text.rstrip().splitlines(), screen.raw


@pytest.fixture
def busy(daemon: AnsweringDaemon) -> AnsweringDaemon:
    """Cards and containers whose tables are wider than 80 columns."""
    wide: dict[str, Any] = {"model": "NVIDIA H100 80GB HBM3"}
    sick = {**CARD, **wide, "index": 1, "health": "XID 79", "cordoned": True}
    daemon.answers["cards"] = rows({**CARD, **wide}, sick)
    daemon.answers["tenants"] = rows(
        tenant("namespace/train-0/main", 3.9, 4), tenant("over", 5, 4, isolation="advice")
    )
    return daemon


def test_ps_always_shows_the_isolation(cli: Cli, busy: AnsweringDaemon) -> None:
    lines, _ = shown(busy, "ps")
    assert re.split("  +", lines[0]) == [
        "CONTAINER",
        "MEMORY USED/QUOTA",
        "CORES USED/QUOTA",
        "ISOLATION",
    ]
    assert lines[3] == "not shown: THROTTLED, POLICY, CARD (the terminal is too narrow)"
    narrow, _ = shown(busy, "ps", columns=50)
    assert narrow[0].split()[-1] == "ISOLATION"
    assert narrow[1].startswith("namespace/t...  3.9/4.0 GiB ")
    assert "THROTTLED" in cli("ps").output


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("command", [("ls",), ("ps",), ("card", "ls")])
def test_no_color_is_used_where_none_is_wanted(
    busy: AnsweringDaemon, command: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert b"\x1b" in shown(busy, *command)[1]
    with terminal(busy, command, 80, **environment) as screen:
        screen.end()
        assert "MODEL" in screen.text or "CONTAINER" in screen.text
        assert b"\x1b" not in screen.raw


@given(
    st.lists(st.tuples(*[CELL] * len(NAMES)), max_size=4),
    st.integers(20, 200),
    st.permutations(NAMES[1:]),
)
def test_a_table_fits_once_its_columns_may_be_left_out(
    cells: list[tuple[str, ...]], room: int, order: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        patch.setenv("COLUMNS", str(room))
        table = text.terminal_table(NAMES, cells, order, lambda *_: "")
    lines = [re.sub("\x1b[^m]*m", "", line) for line in table.splitlines()]
    left_out = (
        lines.pop().removeprefix("not shown: ").partition(" (")[0].split(", ")
        if lines[-1].startswith("not shown")
        else []
    )
    assert left_out == order[: len(left_out)]
    assert all(len(line) <= room for line in lines)
    assert lines[0].split() == [name for name in NAMES if name not in left_out]
