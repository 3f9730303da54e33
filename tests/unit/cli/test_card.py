# SPDX-License-Identifier: Apache-2.0
"""`gpushare card`: cards, and how they are taken out of service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.errors import ExitStatus

from .conftest import CARD, tenant
from .fake_daemon import rows

if TYPE_CHECKING:
    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon

LINKS = [
    {"index": 1, "uuid": "GPU-1", "kind": "NV12", "distance": 1},
    {"index": 2, "uuid": "GPU-2", "kind": "SYS", "distance": 60},
    {"index": 3, "uuid": "GPU-3", "kind": "NV12", "distance": 1},
]


def card(**more: Any) -> dict[str, Any]:
    return {**CARD, "links": LINKS, **more}


def test_card_ls_shows_what_an_operator_needs(cli: Cli, daemon: AnsweringDaemon) -> None:
    shown: dict[str, Any] = {
        "numa_node": None,
        "links": [],
        "allowed_mode": "exclusive",
        "cordoned": True,
    }
    other = card(index=1, uuid="GPU-9", **shown, cordon_reason="fan\x1b[2J", policy="burst-share")
    daemon.answers["cards"] = rows(card(), other)
    result = cli("card", "ls")
    assert result.output.splitlines() == [
        (
            "CARD  UUID                                      MODEL        ALLOWED MODE  "
            "POLICY         CORDONED      NUMA  BEST LINK  TENANTS  AVAILABLE"
        ),
        (
            "0     GPU-5b1f2f4e-0000-4000-8000-000000000000  NVIDIA H200  any           "
            "per container  no            0     NV12 1,3   2/16     126 GiB"
        ),
        (
            "1     GPU-9                                     NVIDIA H200  exclusive     "
            "burst-share    yes: fan?[2J  ?     -          2/16     -"
        ),
    ]
    assert json.loads(cli("card", "ls", "--json").output)[0]["links"] == LINKS


def test_cordon_and_uncordon_show_the_card_as_it_is_now(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["card-cordon"] = [{"ok": True, "card": card(cordoned=True)}]
    daemon.answers["card-uncordon"] = [{"ok": True, "card": card()}]
    assert "  yes  " in cli("card", "cordon", "0", "--reason", "fan").output
    assert "  yes  " in cli("card", "cordon", "0").output
    assert "  no  " in cli("card", "uncordon", "0").output
    assert daemon.requests == [
        {"op": "card-cordon", "card": "0", "reason": "fan"},
        {"op": "card-cordon", "card": "0"},
        {"op": "card-uncordon", "card": "0"},
    ]


def test_drain_cordons_and_shows_the_remaining_tenants(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["card-cordon"] = [{"ok": True, "card": card(cordoned=True)}]
    elsewhere = tenant("serve", 1, 4, uuid="GPU-other")
    daemon.answers["tenants"] = rows(tenant("train", 1, 4), elsewhere)
    assert cli("card", "drain", "0").output == (
        "card 0 is cordoned; still on it:\n"
        "CONTAINER  STATE  MEMORY USED  PID\n"
        "train      bound  1 GiB        4242\n"
    )
    answer = json.loads(cli("card", "drain", "0", "--json").output)
    assert [one["name"] for one in answer["tenants"]] == ["train"]
    daemon.answers["tenants"] = rows(elsewhere)
    assert cli("card", "drain", "0").output == "card 0 is cordoned and empty\n"


def test_drain_waits_until_the_last_has_ended(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["card-cordon"] = [{"ok": True, "card": card(cordoned=True)}]
    left = [rows(tenant("a", 1, 4), tenant("b", 1, 4)), rows(tenant("b", 1, 4)), rows()]
    daemon.answers["tenants"] = left.pop(0)

    def passes(_seconds: float) -> None:
        daemon.answers["tenants"] = left.pop(0)

    monkeypatch.setattr("gpushare.cli.card.time.sleep", passes)
    result = cli("card", "drain", "0", "--wait")
    assert result.exit_code == 0
    assert result.stdout == "card 0 is cordoned and empty\n"
    assert result.stderr == (
        "card 0: waiting for 2 containers: a, b\ncard 0: waiting for 1 container: b\n"
    )


def test_drain_stops_every_tenant_that_it_can(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["card-cordon"] = [{"ok": True, "card": card(cordoned=True)}]
    daemon.answers["tenants"] = rows(tenant("train", 1, 4))
    daemon.answers["stop"] = [{"ok": True, "tenant": tenant("train", 1, 4)}]
    assert cli("card", "drain", "0", "--stop", "--timeout", "3").exit_code == 0
    (stop,) = (one for one in daemon.requests if one["op"] == "stop")
    assert (stop["signal"], stop["timeout"], stop["reason"]) == ("TERM", 3, "draining card 0")
    assert stop["name"] == tenant("train", 1, 4)["key"]
    daemon.answers["stop"] = [{"ok": False, "code": "refused", "error": "it shares its cgroup"}]
    result = cli("card", "drain", "0", "--stop")
    assert result.exit_code == ExitStatus.REFUSED
    assert "it shares its cgroup" in result.stderr
    assert "still on it:" in result.stdout


def test_an_interrupted_wait_leaves_the_card_cordoned_and_says_how_to_undo_it(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["card-cordon"] = [{"ok": True, "card": card(cordoned=True)}]
    daemon.answers["tenants"] = rows(tenant("train", 1, 4))

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushare.cli.card.time.sleep", interrupted)
    result = cli("card", "drain", "0", "--wait")
    assert result.exit_code == ExitStatus.INTERRUPTED
    assert result.stderr.endswith(
        "card 0 stays cordoned, with 1 container still on it. "
        "To undo this, run: gpushare card uncordon 0\n"
    )
    assert [one["op"] for one in daemon.requests].count("card-uncordon") == 0
