# SPDX-License-Identifier: Apache-2.0
"""What an operator reads of what happened."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpushare import protocol

from .fake_daemon import AnsweringDaemon, rows

if TYPE_CHECKING:
    from .conftest import Cli

pytestmark = pytest.mark.usefixtures("daemon")
AT = 1763700000.0


def event(event: str, number: int = 1, **more: Any) -> dict[str, Any]:
    made = {
        "number": number,
        "time": AT,
        "boot_id": "b1",
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


def test_an_event_is_shown_as_a_sentence(daemon: AnsweringDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("daemon-ready", fields={"version": "0.1.0", "pid": 7}),
        event(
            "tenant-reserved",
            name="train",
            id="f" * 64,
            fields={"memory_bytes": 4 << 30, "cards": [0, 1]},
        ),
        event("tenant-hung", name="train", level="warning"),
        event("card-policy-changed", card="GPU-1", fields={"policy": "fixed-share"}),
        event("tenant-released", id="e" * 64, fields={"reason": "its process has ended"}),
    )
    lines = [line[21:] for line in cli("history").output.splitlines()]
    assert lines == [
        "    gpushared 0.1.0 is ready",
        "    train (ffffffffffff) reserved 4 GiB on card 0, 1",
        "!   train has pending work that does not seem to end",
        "    card GPU-1 was set to the policy fixed-share by the operator",
        "    eeeeeeeeeeee exited (its process has ended); its allocation was released",
    ]


def test_a_reboot_is_shown(daemon: AnsweringDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(event("daemon-stopped"), event("daemon-stopped", boot_id="b2"))
    assert cli("history").output.splitlines()[1] == "-- reboot --"


def test_of_an_event_that_is_not_known_name_and_fields_are_shown(
    daemon: AnsweringDaemon, cli: Cli
) -> None:
    daemon.answers["history"] = rows(
        event("tenant-teleported", name="train", fields={"to": "mars", "empty": ""}),
        event("tenant-reserved", name="train", fields={"other": 1}),
    )
    first, second = cli("history").output.splitlines()
    assert first.endswith("train tenant-teleported to=mars")
    assert second.endswith("train tenant-reserved other=1")


def test_a_tenant_writes_nothing_to_the_terminal(daemon: AnsweringDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("tenant-request-adjusted", name="a\x1b[2J", fields={"note": "x\ny"})
    )
    [line] = cli("history").output.splitlines()
    assert "\x1b" not in line


def test_history_requests_a_name_and_a_time(daemon: AnsweringDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows()
    result = cli("history", "train", "--since", "90m")
    assert (result.output, result.exit_code) == ("no events recorded for train\n", 0)
    asked, *_ = daemon.requests
    assert (asked["name"], asked.get("after")) == ("train", None)
    assert asked["since"] == pytest.approx(time.time() - 5400, abs=600)


def test_two_containers_of_one_name_are_told_apart(daemon: AnsweringDaemon, cli: Cli) -> None:
    daemon.answers["history"] = rows(
        event("tenant-released", key="k1", id="e" * 64, name="train", fields={"reason": "killed"}),
        event("tenant-bound", key="k2", id="f" * 64, name="f" * 12, fields={"pid": 7}),
        event("tenant-hung", key="k2", name="train"),
        event("tenant-hung", key="k3"),
        event("tenant-hung", key="k4", id="a" * 64),
    )
    subjects = [line[25:].partition(")")[0] for line in cli("history", "train").output.splitlines()]
    assert subjects == [
        "train (eeeeeeeeeeee",
        "train (ffffffffffff",
        "train (ffffffffffff",
        "k3 has pending work that does not seem to end",
        "aaaaaaaaaaaa has pending work that does not seem to end",
    ]
    found = json.loads(cli("history", "train", "--json").output)
    assert [row["id"][:1] for row in found] == ["e", "f", "", "", "a"]


@pytest.mark.parametrize(
    ("by", "who"),
    [
        ({"by": "idle"}, "idle.action of gpushare.yaml"),
        ({"by": "audit"}, "the audit"),
        ({"by": "operator"}, "the operator"),
        ({"by": "time-limit"}, "its time limit"),
        ({}, "the operator"),  # of an older daemon
    ],
)
def test_who_paused_or_stopped_a_container_is_named(
    daemon: AnsweringDaemon, cli: Cli, by: dict[str, str], who: str
) -> None:
    daemon.answers["history"] = rows(
        event("tenant-frozen", name="train", fields={**by, "reason": "why"}),
        event("tenant-stop-requested", name="train", fields={**by, "signal": "TERM", "timeout": 9}),
    )
    first, second = cli("history").output.splitlines()
    assert first.endswith(f"train was frozen by {who}: why")
    assert second.endswith(f"train was sent TERM by {who}; SIGKILL follows after 9 s")


@pytest.mark.parametrize("text", ["", "1", "-1h", "1y", "h", "1h30m", "nan s"])
def test_an_invalid_time_is_a_usage_error(cli: Cli, text: str) -> None:
    result = cli("history", "--since", text)
    assert result.exit_code == 2
    assert "Use, for example, 90s, 15m, 1h or 7d." in result.output


def test_a_full_page_is_followed_by_the_next(daemon: AnsweringDaemon, cli: Cli) -> None:
    full = [event("daemon-stopped", number) for number in range(1, protocol.HISTORY_ROWS + 1)]
    daemon.answers["history"] = rows(*full)

    def again(request: dict[str, Any]) -> None:
        if request.get("after"):
            daemon.answers["history"] = rows(event("daemon-ready", 501))

    daemon.asked = again
    found = json.loads(cli("history", "--json").output)
    assert len(found) == protocol.HISTORY_ROWS + 1
    assert [request.get("after") for request in daemon.requests] == [None, protocol.HISTORY_ROWS]
