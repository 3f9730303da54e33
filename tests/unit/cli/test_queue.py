# SPDX-License-Identifier: Apache-2.0
"""`gpushare queue` and `gpushare run --wait`, against a daemon that answers as configured."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gpushare.cli import run
from gpushare.cli.session import Session
from gpushare.protocol import CODE_INTERNAL

from .conftest import Cli
from .fake_daemon import AnsweringDaemon, refusal, rows


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "ticket": "3f2a8c01",
        "state": "waiting",
        "position": 1,
        "name": "train",
        "kind": "command",
        "uid": 0,
        "pid": 4242,
        "requests": "8 GiB",
        "count": 1,
        "memory_bytes": 8 << 30,
        "cores": 0,
        "priority": 5,
        "since": time.time() - 185,
        "granted": 0.0,
        "cards": [],
        "ends_in_seconds": None,
        "reason": "no card has room for 8 GiB",
        **changes,
    }


def test_a_restore_that_waits_has_no_ticket(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["queue"] = rows(entry(ticket="", kind="restore", name="notebook"))
    (line,) = cli("queue").stdout.splitlines()[1:]
    assert line.split()[:3] == ["1", "-", "notebook"]
    assert "restore 8 GiB" in line


def test_the_queue_is_shown_in_its_order(cli: Cli, daemon: AnsweringDaemon) -> None:
    late = entry(
        ticket="00000002",
        position=2,
        name="\x1b[31m",
        uid=1000,
        count=2,
    )
    granted = entry(
        ticket="00000001", state="granted", position=0, cards=[0], granted=time.time() - 125
    )
    daemon.answers["queue"] = rows(granted, entry(), late)
    shown = cli("queue").output.splitlines()
    assert shown[0].split() == [
        *("POSITION", "TICKET", "NAME", "USER", "REQUEST", "PRIORITY", "WAITS", "REASON"),
    ]
    assert shown[1].split()[:3] == ["granted", "00000001", "train"]
    assert shown[1].rstrip().endswith("starts on card 0")
    assert "3 min" in shown[2]
    assert "?[31m" in shown[3]
    assert "2 x 8 GiB" in shown[3]
    assert len(json.loads(cli("queue", "--json").output)) == 3


def test_an_empty_queue(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["queue"] = rows()
    assert cli("queue").stderr == "no start waits for room.\n"


def test_a_ticket_is_cancelled(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["queue-cancel"] = [{"ok": True, "ticket": "3f2a8c01", "name": "train"}]
    assert cli("queue", "cancel", "3f2a8c01").output == "train: cancelled\n"
    assert daemon.requests[-1] == {"op": "queue-cancel", "ticket": "3f2a8c01"}


def test_ps_shows_who_waits(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["queue"] = rows(entry())
    line = (
        "train has waited 3 min for 8 GiB (ticket 3f2a8c01, position 1): no card has room for 8 GiB"
    )
    assert cli("ps").output.splitlines()[-1] == line
    daemon.answers["tenants"] = rows()
    assert cli("ps").output.splitlines() == [line]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--wait=10", "--memory", "1GiB"), 125, '--wait "10" is not a duration'),
        (("--wait", "--memory", "1GiB"), 125, "ticket 3f2a8c01: it was cancelled"),
    ],
)
def test_a_wait_that_fails_has_the_status_of_gpushare_s_errors(
    cli: Cli, daemon: AnsweringDaemon, words: tuple[str, ...], status: int, said: str
) -> None:
    daemon.answers["queue-take"] = [{"ok": True, "ticket": "3f2a8c01", "secret": "0" * 32}]
    ended = {"state": "ended", "position": 0, "waiting": 0, "since": 0.0}
    daemon.answers["queue-poll"] = [{"ok": True, **ended, "reason": "cancelled"}]
    result = cli("run", *words, "--", "true")
    assert result.exit_code == status
    assert said in result.stderr


def test_the_options_of_a_quota_do_not_stand_beside_an_engine_s_command(cli: Cli) -> None:
    result = cli("run", "--wait", "--memory", "1GiB", "--", "docker", "run", "image")
    assert result.exit_code == 125
    assert result.stderr == (
        "gpushare: --memory: with --wait, the request of a container is read from the engine's "
        "command. Add -e GPUSHARE_MEMORY=1GiB to its options instead.\n"
    )


def test_on_a_terminal_the_progress_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    progress = run._Progress(Session(), {"ticket": "3f2a8c01", "secret": "0" * 32})
    progress.show("position 2 of 3: no card has room for 8 GiB: card 0 has 2 of 140 GiB")
    progress.show("position 1 of 3: \x1b[2J")
    progress.end("ticket 3f2a8c01 was granted")
    first, second, last = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert len(first) == 59
    assert first.startswith("gpushare: waiting for room (ticket 3f2a8c01, 0:00): posi")
    assert "\x1b" not in second
    assert last == "gpushare: ticket 3f2a8c01 was granted\n"


def test_a_gpushared_that_restarts_is_waited_for(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["queue-take"] = [{"ok": True, "ticket": "3f2a8c01", "secret": "0" * 32}]
    daemon.answers["queue-poll"] = refusal(CODE_INTERNAL, "gpushared failed")

    def answer(_seconds: float) -> None:
        ended = {"state": "ended", "position": 0, "waiting": 0, "since": 0.0}
        daemon.answers["queue-poll"] = [{"ok": True, **ended, "reason": "timed-out"}]

    monkeypatch.setattr(time, "sleep", answer)
    result = cli("run", "--wait=1h", "--memory", "1GiB", "--", "true")
    assert result.exit_code == 124
    first, last = result.stderr.splitlines()
    assert first.endswith("gpushared does not respond; the ticket stays valid")
    assert last == "gpushare: ticket 3f2a8c01: no room was found in time. Nothing was started."
