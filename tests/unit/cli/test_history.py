# SPDX-License-Identifier: Apache-2.0
"""What an operator reads of what happened."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpushare import protocol

from .conftest import CARD
from .fake_daemon import FakeDaemon, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    Cli = Callable[..., Result]

pytestmark = pytest.mark.usefixtures("daemon")
AT = 1763700000.0


def event(event: str, number: int = 1, **more: Any) -> dict[str, Any]:
    made = {
        "number": number,
        "at": AT,
        "boot": "b1",
        "generation": 1,
        "event": event,
        "level": "info",
        "key": "",
        "id": "",
        "name": "",
        "card": "",
        "fields": {},
    }
    return {**made, **more}


def test_it_is_told_in_words(daemon: FakeDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("daemon-ready", fields={"version": "0.1.0", "pid": 7}),
        event(
            "tenant-reserved",
            name="train",
            id="f" * 64,
            fields={"memory_bytes": 4 << 30, "cards": [0, 1]},
        ),
        event("tenant-hung", name="train", level="warning"),
        event("card-policy", card="GPU-1", fields={"policy": "fixed-share"}),
        event("tenant-released", id="e" * 64, fields={"why": "its process has ended"}),
    )
    lines = [line[21:] for line in cli("history").output.splitlines()]
    assert lines == [
        "    gpushared 0.1.0 serves",
        "    train was promised 4 GiB of card 0, 1",
        "!   train has work pending that seems never to end",
        "    card GPU-1 was given the policy fixed-share by the operator",
        "    eeeeeeeeeeee ended (its process has ended): what it was promised is free",
    ]


def test_a_name_that_was_learned_later_is_told_from_the_first(daemon: FakeDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("tenant-frozen", key="k1", id="f" * 64, fields={"by": "operator", "why": ""}),
        event("tenant-thawed", key="k1", id="f" * 64, name="train", fields={"by": "operator"}),
    )
    lines = [line[25:] for line in cli("history").output.splitlines()]
    assert lines == [
        "train was stopped by the operator",
        "train goes on: the operator holds it no more",
    ]


def test_a_card_is_told_by_its_index(daemon: FakeDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("card-cordoned", card=CARD["uuid"], fields={"reason": "fan"}),
        event(
            "over-quota-frozen",
            name="train",
            card=CARD["uuid"],
            fields={"used_bytes": 6 << 30, "may_bytes": 4 << 30},
        ),
    )
    lines = [line[25:] for line in cli("history").output.splitlines()]
    assert lines == [
        "card 0 was cordoned by the operator: fan",
        "train has 6 GiB of the 4 GiB that it may on card 0: stopped",
    ]


def test_a_reboot_is_said(daemon: FakeDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(event("daemon-stopped"), event("daemon-stopped", boot="b2"))
    assert cli("history").output.splitlines()[1] == "-- the machine was started again --"


def test_of_an_event_that_is_not_known_name_and_fields_are_shown(
    daemon: FakeDaemon, cli: Cli
) -> None:
    daemon.answers["history"] = rows(
        event("tenant-teleported", name="train", fields={"to": "mars", "empty": ""}),
        event("tenant-reserved", name="train", fields={"other": 1}),
    )
    first, second = cli("history").output.splitlines()
    assert first.endswith("train tenant-teleported to=mars")
    assert second.endswith("train tenant-reserved other=1")


def test_a_tenant_writes_nothing_to_the_terminal(daemon: FakeDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("tenant-noted", name="a\x1b[2J", fields={"note": "x\ny"})
    )
    [line] = cli("history").output.splitlines()
    assert "\x1b" not in line


def test_name_and_time_are_asked_for(daemon: FakeDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows()
    result = cli("history", "train", "--since", "90m")
    assert (result.output, result.exit_code) == ("nothing was kept of that\n", 0)
    asked, _ = daemon.requests
    assert (asked["name"], asked["after"]) == ("train", 0)
    assert asked["since"] == pytest.approx(time.time() - 5400, abs=600)


@pytest.mark.parametrize("text", ["", "1", "-1h", "1y", "h", "1h30m", "nan s"])
def test_what_is_no_time_is_a_usage_error(cli: Cli, text: str) -> None:
    result = cli("history", "--since", text)
    assert result.exit_code == 2
    assert "write e.g. 90s, 15m, 1h, 7d" in result.output


def test_a_full_page_is_followed_by_the_next(daemon: FakeDaemon, cli: Cli) -> None:
    full = [event("daemon-stopped", number) for number in range(1, protocol.HISTORY_ROWS + 1)]
    daemon.answers["history"] = rows(*full)

    def again(request: dict[str, Any]) -> None:
        if request["after"]:
            daemon.answers["history"] = rows(event("daemon-ready", 501))

    daemon.asked = again
    found = json.loads(cli("history", "--json").output)
    assert len(found) == protocol.HISTORY_ROWS + 1
    assert [request["after"] for request in daemon.requests] == [0, protocol.HISTORY_ROWS]
