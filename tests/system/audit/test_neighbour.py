# SPDX-License-Identifier: Apache-2.0
"""A container within its quota gets its memory although another has filled the card."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

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


@pytest.fixture
def impatient() -> Iterator[Stack]:
    """A daemon that kills a frozen container after two seconds of another's shortfall."""
    with Stack() as made:
        settings = yaml.safe_load(made.config.read_text())
        settings["timing"] = {**settings.get("timing", {}), "shortfall_kill_seconds": 2}
        made.config.write_text(yaml.safe_dump(settings))
        made.start_daemon()
        wait_until(lambda: any(line["event"] == "context-size-measured" for line in logged(made)))
        yield made


def test_a_frozen_container_keeps_its_memory_until_another_needs_its_quota(
    impatient: Stack,
) -> None:
    """The default action: nothing is lost while no other container needs the memory."""
    thief = Bundle(impatient, quota={"memory": "2GiB"}, args=(PROGRAM, "--library", PRIVATE))
    victim = Bundle(impatient, quota={"memory": "4GiB"})
    client = Client(impatient.socket)
    with victim.run() as robbed, thief.run() as robber:
        assert robbed.start()["code"] == 0
        assert robber.start()["code"] == 0
        free = robber.ask("info")["free"]
        robber.tell(f"alloc {free - GIB}")
        wait_until(lambda: frozen(client, thief))
        time.sleep(3)  # longer than the delay, and the card is short all the time
        assert frozen(client, thief)
        assert robber.process.poll() is None
        wait_until(lambda: bool(robbed.ask(f"alloc {3 * GIB}")["code"] == 0))
        wait_until(lambda: robber.process.poll() is not None)
    wait_until(lambda: killed(impatient) == [thief.id])
    [event] = [line for line in logged(impatient) if line["event"] == "over-quota-killed"]
    assert event["choice"] == "freeze"
    assert "of another's quota" in event["reason"]
    for bundle in (victim, thief):
        bundle.remove()


def killed(stack: Stack) -> list[str]:
    return [line["id"] for line in logged(stack) if line["event"] == "over-quota-killed"]


def frozen(client: Client, bundle: Bundle) -> bool:
    [row] = [row for row in client.tenants() if row["id"] == bundle.id]
    return [one["by"] for one in row["interventions"]] == ["audit"]
