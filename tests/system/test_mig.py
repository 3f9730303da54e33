# SPDX-License-Identifier: Apache-2.0
"""Real containers on MIG instances: each has its own, whole or shared, and no other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle

from .waiting import wait_until

GIB = 1 << 30
OUT_OF_MEMORY = 2
INVALID_DEVICE = 101
LAYOUT = ("3g.71gb", "1g.18gb", "1g.18gb")


@pytest.fixture(scope="module")
def machine() -> Iterator[Stack]:
    with Stack(cards=2) as made:
        simulator.partition(Path(made.env["GPUSHARE_SIM_DEVICE"]), LAYOUT)
        made.start_daemon()
        yield made


def answer(machine: Stack, *words: str) -> Any:
    argv = [*machine.cli, *words, "--json"]
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env=machine.environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bundle(machine: Stack, *args: str, **quota: str) -> Bundle:
    return Bundle(machine, quota=quota, args=(*PROBE, *args))


def row(made: Bundle) -> Any:
    return next(one for one in answer(made.stack, "ps") if one["id"] == made.id)


def nodes(made: Bundle) -> list[str]:
    paths = (device["path"] for device in made.read()["linux"]["devices"])
    return sorted(
        path for path in paths if path[len("/dev/nvidia") :][:1].isdigit() or "cap" in path
    )


def test_every_instance_is_listed_with_its_memory(machine: Stack) -> None:
    cards = answer(machine, "ls")
    assert [card["index"] for card in cards] == list(range(8))
    assert [card["model"].removeprefix("H200 MIG ") for card in cards[2:]] == list(LAYOUT) * 2
    assert all(card["uuid"].startswith("MIG-") and card["health"] == "ok" for card in cards[2:])
    assert [(card["health"], card["available_bytes"]) for card in cards[:2]] == [("ok", 0)] * 2
    assert 2 * cards[2]["memory_bytes"] <= cards[0]["memory_bytes"]


def test_a_share_of_an_instance_is_held_by_the_interposer(machine: Stack) -> None:
    made = bundle(machine, memory="4GiB", devices="1:2")
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == OUT_OF_MEMORY
        found = row(made)
        assert found["isolation"] == "interposer"
        [card] = found["cards"]
        assert card["uuid"] == answer(machine, "ls")[7]["uuid"]
        wait_until(lambda: row(made)["cards"][0]["used_bytes"] >= 3 * GIB)
        assert nodes(made) == [
            *("/dev/nvidia-caps/nvidia-cap165", "/dev/nvidia-caps/nvidia-cap166"),
            "/dev/nvidia1",
        ]
    made.remove()


def test_a_whole_instance_has_no_other_beside_it(machine: Stack) -> None:
    made, other = (bundle(machine, count="1", backend="mig", allow="1g.18gb") for _ in range(2))
    with made.run() as tenant, other.run() as second:
        for each in (tenant, second):
            assert each.start()["code"] == 0
            assert each.ask(f"alloc {16 * GIB}")["code"] == 0
            assert each.ask(f"alloc {2 * GIB}")["code"] == OUT_OF_MEMORY
        assert row(made)["isolation"] == "exclusive"
        assert row(made)["cards"][0]["uuid"] != row(other)["cards"][0]["uuid"]
    for one in (made, other, last := bundle(machine, "--card", "1", count="1", backend="mig")):
        one.remove()
    with last.run() as alone:
        assert alone.start()["code"] == INVALID_DEVICE
    last.remove()


def test_the_plan_uses_what_is_free_and_creates_the_rest_where_it_fits(machine: Stack) -> None:
    made = bundle(machine, memory="60GiB", devices="0:0")
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        sizes = ("60GiB", "memory=60GiB,deny=MIG 4g", "10GiB", "10GiB", "10GiB", "10GiB", "10GiB")
        words = [word for size in sizes for word in ("--request", size)]
        plan = answer(machine, "card", "mig", "plan", *words)
    made.remove()
    # 3g.71gb of card 1 is free; the four 1g.18gb are used before more are created behind them.
    uuids = [card["uuid"] for card in answer(machine, "ls")]
    assert {one["uuid"] for one in plan["existing"]} == {uuids[3], uuids[4], *uuids[5:]}
    created = [one for card in plan["cards"] for one in card["create"]]
    assert [(one["profile"], one["size"]) for one in created] == [("1g.18gb", 1)]
    assert [one["request"] for one in plan["unserved"]] in (["--request 1"], ["--request 2"])
    commands = [line for card in plan["cards"] for line in card["commands"]]
    assert len(commands) == 1
    assert commands[0].endswith("-cgi 19:6 -C")


@pytest.mark.parametrize(
    ("quota", "why"),
    [
        ({"count": "1"}, "is a MIG instance, and a whole card is requested"),
        ({"count": "2", "memory": "1GiB"}, "is a MIG instance, and a program can use only one"),
        ({"memory": "20GiB", "allow": "1g.18gb"}, "H200 MIG 3g.71gb) is not in allow"),
        ({"memory": "20GiB", "deny": "MIG"}, "card 0 is divided into MIG instances, which are"),
        ({"memory": "1GiB", "devices": "0:3"}, "card 0:3 does not exist"),
    ],
)
def test_a_refusal_says_what_an_instance_is_not(
    machine: Stack, quota: dict[str, str], why: str
) -> None:
    made = bundle(machine, **quota)
    with made.run() as refused:
        assert refused.wait() != 0
    assert why in refused.errors
    made.remove()
