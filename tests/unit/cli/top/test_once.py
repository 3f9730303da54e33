# SPDX-License-Identifier: Apache-2.0
"""`top` without a terminal: text once, documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.cli.top.render import plain_text as text
from gpushare.cli.top.view import TableView
from tests.unit.cli.conftest import in_utc
from tests.unit.cli.fake_daemon import AnsweringDaemon

from .made import machine

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cli

GOLDEN = Path(__file__).with_name("once.txt")


def test_once_in_ascii_is_this() -> None:
    with in_utc():
        assert text(machine(), TableView(), unicode=False) + "\n" == GOLDEN.read_text()


def test_filter_sort_and_shape_are_chosen_on_the_command_line(
    cli: Cli,
    daemon: AnsweringDaemon,  # noqa: ARG001
) -> None:
    assert "serve" not in cli("top", "--once", "--filter", "train").output
    flat = cli("top", "--once", "--flat", "--sort", "memory").output.splitlines()
    assert flat[3].startswith("NAME")
    assert " CARD " in flat[3]
    assert [line.split()[1] for line in flat[4:] if "▾" in line] == ["serve", "train"]
    assert cli("top", "--once", "--sort", "height").exit_code == 2
    one = json.loads(cli("top", "--json").stdout)
    assert [row["name"] for row in one["containers"]] == ["train", "serve"]
