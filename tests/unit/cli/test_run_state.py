# SPDX-License-Identifier: Apache-2.0
"""Pause, resume, stop, evict, restore and move, typed and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.cli.text import local_time
from tests.unit.rows import GIB

from .conftest import CARD, tenant
from .fake_daemon import refusal, rows

if TYPE_CHECKING:
    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon, Reply

HELD = {"by": "operator", "reason": "inspecting card 0", "since": 1763700000.0}


def now(used: float = 3.9, **more: Any) -> list[Reply]:
    return [{"ok": True, "tenant": tenant("train", used, 4, **more)}]


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


SINCE = 1763700000.0
EVICTED: dict[str, Any] = {
    "state": "evicted",
    "since": SINCE,
    "cause": "idle",
    "reason": "serve had no room",
    "bytes": 24 * GIB,
    "from_cards": [0],
    "held": False,
    "waits_since": None,
    "error": "",
}


@pytest.mark.parametrize(
    ("words", "request_", "evicted", "said"),
    [
        (("evict", "train"), {}, EVICTED, "train: evicted, 24 GiB in host memory\n"),
        (("evict", "train", "--hold"), {"hold": True}, EVICTED, "24 GiB in host memory\n"),
        (("evict", "train"), {}, None, "train: evicted and restored to card 0\n"),
        (("restore", "train"), {}, None, "train: restored to card 0\n"),
        (("move", "train", "--card", "0"), {"card": "0"}, None, "train: moved to card 0\n"),
        (("restore", "train", "--reason", "why"), {"reason": "why"}, None, "restored to card 0\n"),
    ],
)
def test_evictions_are_requested_and_reported(
    daemon: AnsweringDaemon,
    cli: Cli,
    words: tuple[str, ...],
    request_: dict[str, Any],
    evicted: dict[str, Any] | None,
    said: str,
) -> None:
    daemon.answers[words[0]] = now(used=0, eviction=evicted)
    result = cli(*words)
    assert (result.exit_code, result.output.endswith(said)) == (0, True), result.output
    assert daemon.requests == [{"op": words[0], "name": "train", **request_}]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, f"evicted since {local_time(SINCE)}"),
        ({"waits_since": SINCE}, f"evicted since {local_time(SINCE)} (waits)"),
        ({"state": "restoring"}, "restoring"),
        ({"state": "failed"}, "eviction failed"),
    ],
)
def test_ps_shows_since_when_a_container_is_evicted_and_whether_it_waits(
    daemon: AnsweringDaemon, cli: Cli, change: dict[str, Any], shown: str
) -> None:
    daemon.answers["tenants"] = rows(tenant("train", 0, 4, eviction={**EVICTED, **change}))
    assert f" {shown}  " in cli("ps").output


def test_inspect_shows_where_whose_memory_is(daemon: AnsweringDaemon, cli: Cli) -> None:
    held = {**EVICTED, "held": True, "waits_since": SINCE}
    daemon.answers["tenant"] = now(used=0, eviction=held)
    output = cli("inspect", "train").output
    assert "by idle, reason: serve had no room" in output
    assert "24 GiB of card 0" in output
    assert "until gpushare restore train" in output
    assert "for its restore since" in output


def test_a_drain_moves_to_the_next_card_that_takes_it(daemon: AnsweringDaemon, cli: Cli) -> None:
    other = {**CARD, "index": 1, "uuid": "GPU-1"}
    daemon.answers["card-cordon"] = [{"ok": True, "card": {**CARD, "cordoned": True}}]
    daemon.answers["cards"] = rows({**CARD, "cordoned": True}, other)
    daemon.answers["tenants"] = rows(tenant("train", 1, 4))
    daemon.answers["move"] = refusal("refused", "train cannot be moved to card 1: no device node")
    result = cli("card", "drain", "0", "--move")
    assert result.exit_code == 3
    assert "no device node" in result.output
    assert [one["card"] for one in daemon.requests if one["op"] == "move"] == ["GPU-1"]
