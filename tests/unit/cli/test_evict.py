# SPDX-License-Identifier: Apache-2.0
"""Evict, restore and move, typed and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpushare.cli.text import local_time

from .conftest import CARD, GIB, tenant
from .fake_daemon import refusal, rows

if TYPE_CHECKING:
    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon, Reply

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


def now(**more: Any) -> list[Reply]:
    return [{"ok": True, "tenant": tenant("train", 0, 4, **more)}]


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
def test_what_is_asked_and_said(
    daemon: AnsweringDaemon,
    cli: Cli,
    words: tuple[str, ...],
    request_: dict[str, Any],
    evicted: dict[str, Any] | None,
    said: str,
) -> None:
    daemon.answers[words[0]] = now(evicted=evicted)
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
def test_ps_shows_since_when_and_who_waits(
    daemon: AnsweringDaemon, cli: Cli, change: dict[str, Any], shown: str
) -> None:
    daemon.answers["tenants"] = rows(tenant("train", 0, 4, evicted={**EVICTED, **change}))
    assert f" {shown}  " in cli("ps").output


def test_inspect_shows_where_whose_memory_is(daemon: AnsweringDaemon, cli: Cli) -> None:
    held = {**EVICTED, "held": True, "waits_since": SINCE}
    daemon.answers["tenant"] = now(evicted=held)
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
