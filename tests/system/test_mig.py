# SPDX-License-Identifier: Apache-2.0
"""Real containers on MIG instances: each has its own, whole or shared, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import simulator
from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle

from .waiting import wait_until

GIB = 1 << 30
OUT_OF_MEMORY = 2
INVALID_DEVICE = 101


@pytest.fixture(scope="module")
def machine() -> Iterator[Stack]:
    with Stack(cards=2) as made:
        simulator.partition(
            Path(made.env["GPUSHARE_SIM_DEVICE"]), ("3g.71gb", "1g.18gb", "1g.18gb")
        )
        made.start_daemon()
        yield made


def bundle(machine: Stack, *args: str, **quota: str) -> Bundle:
    return Bundle(machine, quota=quota, args=(*PROBE, *args))


def nodes(made: Bundle) -> list[str]:
    paths = (device["path"] for device in made.read()["linux"]["devices"])
    return sorted(
        path for path in paths if path[len("/dev/nvidia") :][:1].isdigit() or "cap" in path
    )


@pytest.mark.gate
def test_a_share_of_an_instance_is_held_by_the_interposer(machine: Stack) -> None:
    made = bundle(machine, memory="4GiB", devices="1:2")
    with made.started() as tenant:
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {2 * GIB}")["code"] == OUT_OF_MEMORY
        found = made.tenant
        assert found["isolation"] == "interposer"
        [card] = found["cards"]
        assert card["uuid"] == machine.shown("ls")[7]["uuid"]
        wait_until(lambda: made.tenant["cards"][0]["used_bytes"] >= 3 * GIB)
        assert nodes(made) == [
            "/dev/nvidia-caps/nvidia-cap165",
            "/dev/nvidia-caps/nvidia-cap166",
            "/dev/nvidia1",
        ]


def test_a_whole_instance_has_no_other_beside_it(machine: Stack) -> None:
    made, other = (bundle(machine, count="1", backend="mig", allow="1g.18gb") for _ in range(2))
    with made.run() as tenant, other.run() as second:
        for each in (tenant, second):
            assert each.start()["code"] == 0
            assert each.ask(f"alloc {16 * GIB}")["code"] == 0
            assert each.ask(f"alloc {2 * GIB}")["code"] == OUT_OF_MEMORY
        assert made.tenant["isolation"] == "exclusive"
        assert made.tenant["cards"][0]["uuid"] != other.tenant["cards"][0]["uuid"]
    for one in (made, other, last := bundle(machine, "--card", "1", count="1", backend="mig")):
        one.remove()
    with last.run() as alone:
        assert alone.start()["code"] == INVALID_DEVICE
    last.remove()
