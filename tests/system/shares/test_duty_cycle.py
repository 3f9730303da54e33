# SPDX-License-Identifier: Apache-2.0
"""A container that bypasses the launch gate is limited by a duty cycle, if configured.

What takes its time to settle is begun first, beside the first test, and looked at last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi
from gpushare.client import Client
from gpushare.daemon.freezer.tenant_cgroup import freezable_groups
from gpushare.daemon.identity.processes import Cgroups, cgroups_of
from gpushare.daemon.store.record import TenantRecord
from tests.system.waiting import wait_until
from tools.bench.shares.machine import Programs

from .conftest import made
from .served import ServedTime, part
from .tenants import SLOW, Busy, SharedCardStack

#: Little at once: a freeze does not stop what is queued.
SHORT = {"kernels": 2}
#: Three seconds of work at once, which outlive every freeze of a short period.
LONG = {"kernels": 800}
#: The driver's figure is of ten seconds, and a debt is repaid over several.
SETTLED, MEASURED = 12, 20
AROUND = f"LD_LIBRARY_PATH={abi.DRIVER_DIR} exec work {{options}}"
BAND = 12


AUDIT = {"gate_bypass": "freeze"}


@pytest.fixture(scope="module")
def strict(programs: Programs) -> Iterator[SharedCardStack]:
    """A daemon that is configured to freeze containers that bypass the gate."""
    with made(programs, cards=1, time_scale=SLOW, audit=AUDIT) as place:
        yield place


@dataclass(frozen=True)
class SettlingCard:
    """A card of a machine of its own, on which `tenants` have worked since `started`."""

    place: SharedCardStack
    index: int
    tenants: tuple[Busy, ...]
    started: ServedTime

    def settled_parts(self, *tenants: Busy) -> list[float]:
        """Return what each got of the card while MEASURED, after it had SETTLED, in percent."""
        before = self.place.truth.later(self.started, SETTLED, self.index)
        after = self.place.truth.later(before, MEASURED, self.index)
        return [part(before, after, tenant.pids) for tenant in tenants]


@pytest.fixture(scope="module")
def two_cards(programs: Programs) -> Iterator[SharedCardStack]:
    with made(programs, cards=2, time_scale=SLOW, audit=AUDIT) as place:
        yield place


@pytest.fixture(scope="module", autouse=True)
def long_queue(two_cards: SharedCardStack) -> SettlingCard:
    """A tenant with a share, and one whose queue outlives a freeze."""
    fixed = {"policy": "fixed-share", "devices": "0"}
    beside = two_cards.start({**fixed, "cores": "60"})
    around = two_cards.start({**fixed, "cores": "30"}, script=AROUND, work=LONG)
    wait_until(lambda: "duty-cycle-started" in events(two_cards, around))
    return SettlingCard(two_cards, 0, (beside, around), two_cards.truth.now(0))


@pytest.fixture(scope="module", autouse=True)
def false_claims(two_cards: SharedCardStack, attack: Path) -> SettlingCard:
    """A victim, an accomplice, and a tenant that claims work for the accomplice."""
    fixed = {"policy": "fixed-share", "devices": "1"}
    victim = two_cards.start({**fixed, "cores": "30"})
    accomplice = two_cards.start({**fixed, "cores": "40"})
    mounts = {"/attack": attack}
    claims = two_cards.start({**fixed, "cores": "20"}, script="/attack/claims", mounts=mounts)
    return SettlingCard(two_cards, 1, (victim, accomplice, claims), two_cards.truth.now(1))


def events(place: SharedCardStack, tenant: Busy) -> list[str]:
    lines = map(json.loads, (place.stack.root / "gpushared.log").read_text().splitlines())
    return [
        line["event"]
        for line in lines
        if line["event"].startswith("duty-cycle-") and tenant.id in line.get("id", "")
    ]


def is_frozen(tenant: Busy) -> bool:
    """Whether the kernel has its group frozen now."""
    row: Any = tenant.row()
    paths = cgroups_of(row["pid"])
    name = "" if paths[""] != "/" else "devices"
    entry = TenantRecord(
        row["key"], "bound", tenant.id, pid=row["pid"], cgroup=f"{name}:{paths[name]}"
    )
    return any(group.is_set() for group in freezable_groups(entry, {}, Cgroups.mounted()).values())


def test_a_bypassing_tenant_gets_its_share_and_its_neighbour_the_rest(
    strict: SharedCardStack,
) -> None:
    beside = strict.start({"cores": "70", "policy": "burst-share"})
    around = strict.start({"cores": "30", "policy": "burst-share"}, script=AROUND, work=SHORT)
    wait_until(lambda: "duty-cycle-started" in events(strict, around))
    strict.assert_parts({around: 30, beside: 70}, band=BAND)
    wait_until(
        lambda: any("limited to 30 % by freezing" in one for one in around.row()["warnings"])
    )
    assert around.row()["interventions"] == []
    assert around.row()["cards"][0]["share_percent"] == 30.0
    assert events(strict, beside) == []

    wait_until(lambda: events(strict, around)[-1] == "duty-cycle-started")
    daemon = strict.stack.daemon
    assert daemon is not None
    wait_until(lambda: is_frozen(around))  # and mostly still is when it is killed
    daemon.process.kill()
    daemon.process.wait()
    before = events(strict, around)
    strict.stack.start_daemon()
    wait_until(lambda: events(strict, around)[len(before) :] == ["duty-cycle-ended"])
    assert not is_frozen(around)

    wait_until(lambda: events(strict, around)[-1] == "duty-cycle-started")
    Client(strict.stack.socket).resume(around.id)
    assert events(strict, around)[-1] == "duty-cycle-ended"
    assert not is_frozen(around)


def test_a_queue_that_outlives_a_freeze_is_limited_too(long_queue: SettlingCard) -> None:
    """By 100 ms alone, it had 49 percent."""
    beside, around = long_queue.tenants
    got, neighbour = long_queue.settled_parts(around, beside)
    assert 20 < got < 38
    assert neighbour > 52
    [warning] = around.row()["warnings"]
    measured = float(warning.rpartition("the driver measured ")[2].split()[0])
    assert measured == pytest.approx(around.spent()["driver_utilization"], abs=5)
    assert events(long_queue.place, beside) == []


def test_a_duty_cycle_does_not_begin_for_false_claims(false_claims: SettlingCard) -> None:
    """One container claims work for an accomplice: the caps hold, and no container is frozen."""
    victim, accomplice, _ = false_claims.tenants
    got, others = false_claims.settled_parts(victim, accomplice)
    assert got == pytest.approx(30, abs=BAND / 2)
    assert others < 40 + BAND / 2
    for tenant in false_claims.tenants:
        assert events(false_claims.place, tenant) == []
        assert tenant.row()["interventions"] == []
