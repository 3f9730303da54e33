# SPDX-License-Identifier: Apache-2.0
"""Pause, resume and stop, typed and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import tenant
from .fake_daemon import rows

if TYPE_CHECKING:
    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon, Reply

HELD = {"by": "operator", "reason": "inspecting card 0", "since": 1763700000.0}


def now(**more: Any) -> list[Reply]:
    return [{"ok": True, "tenant": tenant("train", 3.9, 4, **more)}]


@pytest.mark.parametrize(
    ("words", "request_", "said"),
    [
        (("pause", "train"), {"op": "pause", "name": "train"}, "train: paused\n"),
        (
            ("pause", "train", "--reason", "why"),
            {"op": "pause", "name": "train", "reason": "why"},
            "train: paused\n",
        ),
        (("resume", "train"), {"op": "resume", "name": "train"}, "train: resumed\n"),
        (
            ("stop", "train"),
            {"op": "stop", "name": "train", "signal": "TERM", "timeout": 10},
            "train: sent SIGTERM, will be killed in 10 s\n",
        ),
        (
            ("stop", "train", "--signal", "KILL", "--reason", "why"),
            {"op": "stop", "name": "train", "signal": "KILL", "timeout": 10, "reason": "why"},
            "train: killed\n",
        ),
        (
            ("stop", "train", "--timeout", "0"),
            {"op": "stop", "name": "train", "signal": "TERM", "timeout": 0},
            "train: killed\n",
        ),
    ],
)
def test_requests_and_their_messages(
    cli: Cli, daemon: AnsweringDaemon, words: tuple[str, ...], request_: Reply, said: str
) -> None:
    daemon.answers[words[0]] = now()
    shown = cli(*words)
    assert (shown.exit_code, shown.output) == (0, said)
    assert daemon.requests == [request_]


def test_several_containers_are_handled_once_each_and_in_order(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    daemon.answers["pause"] = now()
    assert cli("pause", "train", "serve", "train").exit_code == 0
    assert [request["name"] for request in daemon.requests] == ["train", "serve"]
    assert len(json.loads(cli("pause", "--json", "train", "serve").output)) == 2


@pytest.mark.parametrize(
    "words",
    [("pause",), ("stop", "train", "--timeout", "-1"), ("stop", "train", "--signal", "STOP")],
)
def test_an_impossible_request_is_not_sent(
    cli: Cli, daemon: AnsweringDaemon, words: tuple[str, ...]
) -> None:
    assert cli(*words).exit_code == 2
    assert not daemon.requests


@pytest.mark.parametrize(
    ("by", "cell", "line"),
    [
        ("operator", "paused", "paused             since 2025-11-21"),
        ("audit", "frozen", "frozen             since 2025-11-21"),
        ("stop", "stopping", "stopping           since 2025-11-21"),
    ],
)
def test_ps_top_and_inspect_show_stopped_tenants(
    cli: Cli, daemon: AnsweringDaemon, by: str, cell: str, line: str
) -> None:
    one = tenant("train", 3.9, 4, interventions=[{**HELD, "by": by}])
    daemon.answers["tenants"] = rows(one)
    daemon.answers["tenant"] = [{"ok": True, "tenant": one}]
    assert cell in cli("ps").output
    assert cell in cli("top", "--once").output
    inspected = cli("inspect", "train").output
    assert line in inspected
    assert f", by {by}, reason: inspecting card 0" in inspected
