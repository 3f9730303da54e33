# SPDX-License-Identifier: Apache-2.0
"""Who goes round the gate is held to his part by freezing, where the operator chose so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import abi
from gpushare.client import Client
from gpushare.daemon.control.own_group import own_groups
from gpushare.daemon.identity.processes import Cgroups, cgroups_of
from gpushare.daemon.store.ledger import Entry
from tests.bench.shares.machine import Programs
from tests.e2e.waiting import wait_until

from .conftest import made
from .tenants import SLOW, Busy, Place

#: Little at once: a queue that outlasts a turn is not stopped by stopping who filled it.
SHORT = {"kernels": 2}
AROUND = f"LD_LIBRARY_PATH={abi.DRIVER_DIR} exec work {{options}}"
BAND = 12


@pytest.fixture(scope="module")
def strict(programs: Programs) -> Iterator[Place]:
    """A daemon whose operator wants who goes round the gate held."""
    with made(programs, cards=1, slow_motion=SLOW, audit={"compute": "freeze"}) as place:
        yield place


def events(place: Place, tenant: Busy) -> list[str]:
    lines = map(json.loads, (place.stack.root / "gpushared.log").read_text().splitlines())
    return [
        line["event"]
        for line in lines
        if line["event"].startswith("compute-") and tenant.id in line.get("id", "")
    ]


def is_frozen(tenant: Busy) -> bool:
    """Whether the kernel has its group frozen now."""
    row: Any = tenant.row()
    paths = cgroups_of(row["pid"])
    name = "" if paths[""] != "/" else "devices"
    entry = Entry(row["key"], "bound", tenant.id, pid=row["pid"], cgroup=f"{name}:{paths[name]}")
    return any(group.is_set() for group in own_groups(entry, {}, Cgroups.mounted()).values())


def test_he_gets_his_part_and_his_neighbour_the_rest(strict: Place) -> None:
    beside = strict.start({"cores": "70", "policy": "burst-share"})
    around = strict.start({"cores": "30", "policy": "burst-share"}, script=AROUND, work=SHORT)
    wait_until(lambda: "compute-held" in events(strict, around))
    strict.assert_parts({around: 30, beside: 70}, band=BAND)
    wait_until(lambda: any("held to 30 % by freezing" in one for one in around.row()["warnings"]))
    assert around.row()["held"] == []
    assert around.row()["cards"][0]["share"] == 30.0
    assert events(strict, beside) == []

    wait_until(lambda: events(strict, around)[-1] == "compute-held")
    daemon = strict.stack.daemon
    assert daemon is not None
    wait_until(lambda: is_frozen(around))  # and mostly still is when it is killed
    daemon.process.kill()
    daemon.process.wait()
    before = events(strict, around)
    strict.stack.start_daemon()
    wait_until(lambda: events(strict, around)[len(before) :] == ["compute-let-go"])
    assert not is_frozen(around)

    wait_until(lambda: events(strict, around)[-1] == "compute-held")
    Client(strict.stack.socket).resume(around.id)
    assert events(strict, around)[-1] == "compute-let-go"
    assert not is_frozen(around)
