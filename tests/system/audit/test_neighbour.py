# SPDX-License-Identifier: Apache-2.0
"""A container within its quota gets its memory although another has filled the card."""

from __future__ import annotations

import json
from typing import Any

from gpushare.client import Client
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30
PRIVATE = "/opt/gpushare/driver/libcuda.so.1"


def logged(stack: Stack) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (stack.root / "gpushared.log").read_text().splitlines()]


def test_an_allocation_within_quota_waits_until_the_container_over_quota_is_killed(
    audited: Stack,
) -> None:
    """It bypasses the library, takes all memory that is left, and is to be killed for it."""
    thief = Bundle(audited, quota={"memory": "2GiB"}, args=(PROGRAM, "--library", PRIVATE))
    victim = Bundle(audited, quota={"memory": "4GiB"})
    with victim.run() as robbed, thief.run() as robber:
        assert robbed.start()["code"] == 0
        assert robbed.ask(f"alloc {GIB}")["code"] == 0
        assert robber.start()["code"] == 0
        Client(audited.socket).set(thief.id, over_quota_action="kill")
        free = robber.ask("info")["free"]
        robber.tell(f"alloc {free - GIB}")
        assert robber.answer("alloc")["code"] == 0
        # Each is asked for two seconds; the machine may be slower than that today.
        wait_until(lambda: bool(robbed.ask(f"alloc {2 * GIB}")["code"] == 0))
        wait_until(lambda: robber.process.poll() is not None)
        info = robbed.ask("info")
        assert info["total"] == 4 * GIB
        assert info["total"] - info["free"] >= 3 * GIB
        card = Client(audited.socket).why(victim.id)["cards"][0]
        assert card["shortfall"] is not None
        assert card["shortfall"]["bytes"] == 2 * GIB
    wait_until(lambda: thief.id in killed(audited))
    events = [
        (line["event"], line["id"] if "id" in line else line["name"])
        for line in logged(audited)
        if line["event"].startswith(("memory-shortfall-reported", "over-quota-"))
    ]
    assert not [event for event in events if event[1] == victim.id and "over" in event[0]]
    assert "memory-shortfall-reported" in {event for event, _ in events}
    for bundle in (victim, thief):
        bundle.remove()


def killed(stack: Stack) -> list[str]:
    return [line["id"] for line in logged(stack) if line["event"] == "over-quota-killed"]
