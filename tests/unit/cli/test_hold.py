# SPDX-License-Identifier: Apache-2.0
"""Pause, resume and kick, typed and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import tenant
from .fake_daemon import refusal, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from .fake_daemon import FakeDaemon, Reply

    Cli = Callable[..., Result]

HELD = {"by": "operator", "why": "card 0 is looked at", "since": 1763700000.0}


def now(**more: Any) -> list[Reply]:
    return [{"ok": True, "tenant": tenant("train", 3.9, 4, **more)}]


@pytest.mark.parametrize(
    ("words", "request_", "said"),
    [
        (("pause", "train"), {"op": "pause", "name": "train"}, "train: paused\n"),
        (
            ("pause", "train", "--reason", "why"),
            {"op": "pause", "name": "train", "why": "why"},
            "train: paused\n",
        ),
        (("resume", "train"), {"op": "resume", "name": "train"}, "train: goes on\n"),
        (
            ("kick", "train"),
            {"op": "kick", "name": "train", "signal": "TERM", "grace": 10},
            "train: was sent SIGTERM, is killed in 10 s\n",
        ),
        (
            ("kick", "train", "--signal", "KILL", "--reason", "why"),
            {"op": "kick", "name": "train", "signal": "KILL", "grace": 10, "why": "why"},
            "train: killed\n",
        ),
        (
            ("kick", "train", "--grace", "0"),
            {"op": "kick", "name": "train", "signal": "TERM", "grace": 0},
            "train: killed\n",
        ),
    ],
)
def test_what_is_asked_and_said(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], request_: Reply, said: str
) -> None:
    daemon.answers[words[0]] = now()
    shown = cli(*words)
    assert (shown.exit_code, shown.output) == (0, said)
    assert daemon.requests == [request_]


def test_several_are_asked_for_one_after_another_and_once(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["pause"] = now()
    assert cli("pause", "train", "serve", "train").exit_code == 0
    assert [request["name"] for request in daemon.requests] == ["train", "serve"]
    assert len(json.loads(cli("pause", "--json", "train", "serve").output)) == 2


def test_one_that_is_refused_is_told_with_3_and_one_that_is_unknown_with_1(
    cli: Cli, daemon: FakeDaemon
) -> None:
    daemon.answers["resume"] = refusal("refused", "train is not paused")
    shown = cli("resume", "train")
    assert (shown.exit_code, shown.output) == (3, "gpushare: train is not paused\n")
    daemon.answers["resume"] = [
        {"ok": False, "code": "unknown", "error": "no x", "candidates": ["train"]}
    ]
    shown = cli("resume", "x")
    assert (shown.exit_code, shown.output) == (1, "gpushare: no x\n  train\n")


@pytest.mark.parametrize(
    "words",
    [("pause",), ("kick", "train", "--grace", "-1"), ("kick", "train", "--signal", "STOP")],
)
def test_what_makes_no_sense_is_not_asked(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    assert cli(*words).exit_code == 2
    assert not daemon.requests


@pytest.mark.parametrize(
    ("by", "cell", "line"),
    [
        ("operator", "paused", "paused since 2025-11-21"),
        ("audit", "frozen", "frozen since 2025-11-21"),
        ("kill", "ending", "is to end since 2025-11-21"),
    ],
)
def test_ps_top_and_inspect_show_who_does_not_run(
    cli: Cli, daemon: FakeDaemon, by: str, cell: str, line: str
) -> None:
    one = tenant("train", 3.9, 4, held=[{**HELD, "by": by}])
    daemon.answers["tenants"] = rows(one)
    daemon.answers["tenant"] = [{"ok": True, "tenant": one}]
    assert cell in cli("ps").output
    assert cell in cli("top", "--once").output
    inspected = cli("inspect", "train").output
    assert line in inspected
    assert f"({by}: card 0 is looked at)" in inspected
