# SPDX-License-Identifier: Apache-2.0
"""Options and help of every command; what else they show is in transcripts.txt."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest

from gpushare import protocol
from gpushare.cli import gpushare, run
from gpushare.cli.commands import SECTIONS
from gpushare.cli.session import Session

from .fake_daemon import AnsweringDaemon, rows
from .test_transcripts import event

if TYPE_CHECKING:
    from .conftest import Cli


def test_a_start_that_waits_says_each_change_on_a_terminal_and_one_in_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for lines, is_terminal in ((1, False), (2, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        progress = run._Progress(Session(), {"ticket": "3f2a", "secret": "x"})
        for text in ("position 2", "position 2", "position 1"):
            progress.show(text)
        shown = capsys.readouterr().err.splitlines()
        assert shown[0] == "gpushare: waiting for room (ticket 3f2a): position 2"
        assert len(shown) == lines


def test_alone_without_a_daemon_it_says_setup(cli: Cli) -> None:
    result = cli()
    assert result.exit_code == 0
    assert "next: sudo gpushare setup" in result.output


def test_help_has_each_command_in_its_section_with_an_example(cli: Cli) -> None:
    output = cli("--help").output
    for section, entries in SECTIONS.items():
        assert f"\n{section}:\n" in output
        for name, entry in entries.items():
            assert f"\n  {name} " in output
            assert f"\n  {entry.example}\n" in output
            assert isinstance(gpushare, click.Group)
            command = gpushare.get_command(click.Context(gpushare), name)
            assert command is not None
            assert command.get_short_help_str(80) == entry.summary
            help_text = cli(name, "--help").output
            assert f"Example: gpushare {name}" in help_text
            assert "--json" in help_text


def test_a_full_page_of_events_is_followed_by_the_next(cli: Cli, daemon: AnsweringDaemon) -> None:
    full = [event("daemon-stopped", number=n) for n in range(1, protocol.HISTORY_ROWS + 1)]
    daemon.answers["history"] = rows(*full)

    def again(request: dict[str, Any]) -> None:
        if request.get("after"):
            daemon.answers["history"] = rows(event("daemon-ready", number=501))

    daemon.asked = again
    found = json.loads(cli("history", "--json").output)
    assert len(found) == protocol.HISTORY_ROWS + 1
    assert [request.get("after") for request in daemon.requests] == [None, protocol.HISTORY_ROWS]
