# SPDX-License-Identifier: Apache-2.0
"""How compute is shared, typed and shown: `set`, `card policy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare import protocol

from .conftest import CARD, tenant
from .fake_daemon import refusal, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from .fake_daemon import FakeDaemon

    Cli = Callable[..., Result]


def test_set_shows_the_share_that_holds_now(cli: Cli, daemon: FakeDaemon) -> None:
    words = ("--cores", "40", "--policy", "burst-share", "--weight", "3", "--priority", "0")
    asked = {"cores": "40", "policy": "burst-share", "weight": "3", "priority": "0"}
    now = tenant("train", 3.9, 6, policy="burst-share", share=40.0, capped=False, priority=0)
    daemon.answers["set"] = [{"ok": True, "tenant": now}]
    shown = cli("set", "train", *words).output
    assert shown == "train: card 0: burst-share 40.0 % and more, priority 0\n"
    assert daemon.requests == [{"op": "set", "name": "train", **asked}]


def test_set_shows_memory_and_compute_where_both_were_typed(cli: Cli, daemon: FakeDaemon) -> None:
    shown = cli("set", "train", "--memory", "6GiB", "--class", "offline").output
    assert shown == "train: card 0: 3.9/6.0 GiB, fixed-share 30.0 %, priority 5\n"
    expected = {"op": "set", "name": "train", "memory": "6GiB", "class": "offline"}
    assert daemon.requests == [expected]


def test_set_says_online(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["set"] = [{"ok": True, "tenant": tenant("train", 1, 6, online=True)}]
    assert cli("set", "train", "--class", "online").output.endswith("fixed-share 30.0 %, online\n")


@pytest.mark.parametrize(
    "words", [("--cores", "101"), ("--policy", "fair"), ("--priority", "10"), ("--class", "best")]
)
def test_set_takes_no_value_that_is_none(cli: Cli, daemon: FakeDaemon, words: tuple[str]) -> None:
    assert cli("set", "train", *words).exit_code == 2
    assert not daemon.requests


def test_card_policy_shows_all_cards_or_one(cli: Cli, daemon: FakeDaemon) -> None:
    other = {**CARD, "index": 1, "uuid": "GPU-1", "policy": "best-effort", "tenants": 0}
    daemon.answers["cards"] = rows(CARD, other)
    assert cli("card", "policy").output == (
        "CARD  MODEL        POLICY        CORES  TENANTS\n"
        "0     NVIDIA H200  as each asks  90 %   2/16\n"
        "1     NVIDIA H200  best-effort   90 %   0/16\n"
    )
    assert cli("card", "policy", "1").output.splitlines()[1:] == [
        "1     NVIDIA H200  best-effort  90 %   0/16"
    ]
    assert cli("card", "policy", CARD["uuid"][:12]).output.splitlines()[1].startswith("0 ")


def test_card_policy_sets_and_resets(cli: Cli, daemon: FakeDaemon) -> None:
    assert "burst-share" in cli("card", "policy", "0", "burst-share").output
    assert cli("card", "policy", "0", "--reset").exit_code == 0
    assert daemon.requests == [
        {"op": "card-policy", "card": "0", "policy": "burst-share"},
        {"op": "card-policy", "card": "0"},
    ]


@pytest.mark.parametrize("words", [("--reset",), ("0", "burst-share", "--reset"), ("0", "fair")])
def test_card_policy_wants_a_card_and_one_of_both(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    assert cli("card", "policy", *words).exit_code == 2
    assert not daemon.requests


def test_a_card_that_is_not_there(cli: Cli, daemon: FakeDaemon) -> None:  # noqa: ARG001
    result = cli("card", "policy", "7")
    assert (result.exit_code, result.stderr) == (
        1,
        "gpushare: there is no card 7; see gpushare ls\n",
    )


def test_a_policy_that_does_not_fit_is_refused(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers["card-policy"] = refusal(protocol.CODE_REFUSED, "card 0 cannot")
    assert cli("card", "policy", "0", "fixed-share").exit_code == 3
