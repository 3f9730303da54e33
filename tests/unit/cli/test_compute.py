# SPDX-License-Identifier: Apache-2.0
"""How compute is shared, typed and shown: `set`, `card policy`, `ps`, `inspect`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from gpushare.cli.status import PS_HEADINGS, WIDE

from .conftest import CARD, tenant
from .fake_daemon import rows

if TYPE_CHECKING:
    from .conftest import Cli
    from .fake_daemon import AnsweringDaemon


def test_set_shows_the_share_that_holds_now(cli: Cli, daemon: AnsweringDaemon) -> None:
    words = ("--cores", "40", "--policy", "burst-share", "--weight", "3", "--priority", "0")
    asked = {"cores": "40", "policy": "burst-share", "weight": "3", "priority": "0"}
    now = tenant(
        "train", 3.9, 6, policy="burst-share", share_percent=40.0, is_capped=False, priority=0
    )
    daemon.answers["set"] = [{"ok": True, "tenant": now}]
    shown = cli("set", "train", *words).output
    assert shown == "train: card 0: burst-share 40.0 % and more, offline 0\n"
    assert daemon.requests[-1] == {"op": "set", "name": "train", **asked}


def test_card_policy_shows_all_cards_or_one(cli: Cli, daemon: AnsweringDaemon) -> None:
    other = {**CARD, "index": 1, "uuid": "GPU-1", "policy": "best-effort", "tenants": 0}
    daemon.answers["cards"] = rows(CARD, other)
    assert cli("card", "policy").output == (
        "CARD  MODEL        POLICY         CORES  TENANTS\n"
        "0     NVIDIA H200  per container  90 %   2/16\n"
        "1     NVIDIA H200  best-effort    90 %   0/16\n"
    )
    assert cli("card", "policy", "1").output.splitlines()[1:] == [
        "1     NVIDIA H200  best-effort  90 %   0/16"
    ]
    assert cli("card", "policy", CARD["uuid"][:12]).output.splitlines()[1].startswith("0 ")


def test_card_policy_sets_and_resets(cli: Cli, daemon: AnsweringDaemon) -> None:
    assert "burst-share" in cli("card", "policy", "0", "burst-share").output
    assert cli("card", "policy", "0", "--reset").exit_code == 0
    assert daemon.requests == [
        {"op": "card-policy", "card": "0", "policy": "burst-share"},
        {"op": "card-policy", "card": "0"},
    ]


@pytest.mark.parametrize("words", [("--reset",), ("0", "burst-share", "--reset"), ("0", "fair")])
def test_card_policy_wants_a_card_and_one_of_both(
    cli: Cli, daemon: AnsweringDaemon, words: tuple[str, ...]
) -> None:
    assert cli("card", "policy", *words).exit_code == 2
    assert not daemon.requests


def test_a_card_that_is_not_there(cli: Cli, daemon: AnsweringDaemon) -> None:  # noqa: ARG001
    result = cli("card", "policy", "7")
    assert (result.exit_code, result.stderr) == (
        1,
        "gpushare: there is no card 7. See gpushare ls.\n",
    )


WIDE_ROW = (
    *("train", "0", "3.9/4.0 GiB", "29.8/30 %", "fixed-share", "12 %", "interposer"),
    *("30.1", "30.0", "30.0 %", "offline 5", "window", "600", "2", "1", "no"),
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_ps_wide_has_three_averages_and_the_gates_counters(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    daemon.answers["tenants"] = rows(tenant("train", 3.9, 4))
    headings, row = cli("ps", "--wide").output.splitlines()
    assert tuple(cells(headings)) == (*PS_HEADINGS, *WIDE)
    assert tuple(cells(row)) == WIDE_ROW


DRIVERS = {
    "cores_source": "driver",
    "gate": "open",
    "cores_used": {"1s": 97.0, "10s": 96.4, "60s": None},
    "throttled": {"1s": 0.0, "10s": 0.0, "60s": None},
}
SILENT = {
    "cores_source": "",
    "gate": "closed",
    "cores_used": {"1s": None, "10s": None, "60s": None},
    "throttled": {"1s": None, "10s": None, "60s": None},
}


@pytest.mark.parametrize(
    ("spent", "got", "shown", "throttled"),
    [
        (DRIVERS, 97.0, "~97/30 %", "0 %"),
        (SILENT, None, "?/30 %", "-"),
        ({**SILENT, "gate": "open"}, None, "-/30 %", "-"),
    ],
)
def test_ps_shows_the_source_of_each_figure(
    cli: Cli,
    daemon: AnsweringDaemon,
    spent: dict[str, object],
    got: float | None,
    shown: str,
    throttled: str,
) -> None:
    more = {"cores_got": got, "throttled": None if got is None else 0.0}
    daemon.answers["tenants"] = rows(tenant("train", 3.9, 4, compute=copy.deepcopy(spent), **more))
    row = cells(cli("ps").output.splitlines()[1])
    assert (row[3], row[5]) == (shown, throttled)


def test_inspect_has_all_of_it(cli: Cli, daemon: AnsweringDaemon) -> None:
    daemon.answers["tenant"] = [{"ok": True, "tenant": tenant("train", 3.9, 4)}]
    lines = cli("inspect", "train").output.splitlines()
    assert {
        "class              offline 5",
        "  cores used       29.8 % in 1s, 30.1 % in 10s, 30.0 % in 60s",
        "  share            fixed-share 30.0 %, offline 5",
        "  throttled        12 % in 1s, 10 % in 10s, 11 % in 60s",
        "  gate             window, 600 windows, 2 overruns, 1 forced launch, threads waited 2.5 s",
        "  utilization      31.0 % in 10s (reported by the driver)",
    } <= set(lines)


def test_warnings_are_in_ps_and_inspect(cli: Cli, daemon: AnsweringDaemon) -> None:
    said = "train on card 0: charged 12 %, the driver measured 40 %: work bypasses the launch gate"
    train = tenant("train", 3.9, 4, warnings=[said])
    daemon.answers |= {"tenants": rows(train), "tenant": [{"ok": True, "tenant": train}]}
    assert cli("ps").output.splitlines()[-1] == said
    assert f"warning            {said}" in cli("inspect", "train").output.splitlines()
