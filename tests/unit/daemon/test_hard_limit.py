# SPDX-License-Identifier: Apache-2.0
"""A driver that can hold a cgroup to a limit does, and who it does not hold is told so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon import startup
from gpushare.daemon.cards.card import DriverError, Limits
from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.identity import processes
from gpushare.daemon.life import bind as binding
from gpushare.daemon.life.bind import NotHeld, bind
from gpushare.daemon.life.release import adopt, end, reconcile
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.memory.lend import lend
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.views.rows import tenant_row
from gpushare.protocol import Opened
from gpushare.quota import QuotaError

from . import fakes
from .fakes import GIB, MIB, FakeDriver
from .operations import entry_of, opened

CARD = fakes.card(0).uuid
CGROUP = ":/tenant"


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver(fakes.card(0), fakes.card(1))
    made.has_limits = True
    return made


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cgroup in which every tenant of a test is."""
    line = f"30 1 0:30 / {tmp_path} rw - cgroup2 cgroup2 rw"
    cgroups = processes.Cgroups(line)
    monkeypatch.setattr(processes.Cgroups, "mounted", lambda: cgroups)
    monkeypatch.setattr(binding, "_cgroup", lambda *_: CGROUP)
    directory = tmp_path / "tenant"
    directory.mkdir()
    return directory


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver, cgroup: Path) -> Iterator[Node]:
    del cgroup
    with fakes.node(tmp_path, driver) as made:
        yield made


def bound(node: Node, program: subprocess.Popen[bytes], **quota: str) -> Opened:
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant


def test_the_driver_holds_each_card_of_a_bound_tenant(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    tenant = bound(node, program, memory="4GiB", count="2")
    four = Limits(4 * GIB, 4 * GIB)
    assert driver.held == {(fakes.card(number).uuid, cgroup): four for number in (0, 1)}
    assert tenant_row(entry_of(node, tenant), node)["isolation"] == "driver"


def test_a_driver_may_round_and_not_say_another_thing(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes]
) -> None:
    driver.rounds_to = 2 * MIB
    assert entry_of(node, bound(node, program, memory="1000001KiB")).isolation == "driver"
    driver.rounds_to = GIB
    assert entry_of(node, bound(node, program, memory="3500MiB")).isolation == "interposer"


def test_where_the_driver_refuses_the_interposer_holds_and_nothing_is_left(
    node: Node,
    driver: FakeDriver,
    program: subprocess.Popen[bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver.refusal = "NVML: Insufficient Permissions"
    assert entry_of(node, bound(node, program, memory="4GiB")).isolation == "interposer"
    assert driver.held == {}
    assert capfd.readouterr().err.count('"event":"driver-limits-failed"') == 1


def test_an_older_driver_is_not_asked(
    node: Node,
    driver: FakeDriver,
    program: subprocess.Popen[bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver.has_limits = False
    assert entry_of(node, bound(node, program, memory="4GiB")).isolation == "interposer"
    assert driver.held == {}
    assert "driver-limits" not in capfd.readouterr().err


def test_who_asks_for_the_interposer_gets_it_alone(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes]
) -> None:
    tenant = bound(node, program, memory="4GiB", backend="interposer")
    assert entry_of(node, tenant).isolation == "interposer"
    assert driver.held == {}


def test_who_asks_for_the_driver_does_not_start_without_it(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes]
) -> None:
    assert (
        entry_of(node, bound(node, program, memory="4GiB", backend="driver")).isolation == "driver"
    )
    driver.refusal = "no"
    with pytest.raises(NotHeld, match="asks for backend driver, and the driver does not hold"):
        bound(node, program, memory="4GiB", backend="driver")
    driver.has_limits = False
    with pytest.raises(QuotaError, match=r'"driver" needs memory limits, which driver 580.65.06'):
        opened(node, memory="4GiB", backend="driver")


def test_a_host_process_that_could_walk_around_everything_stays_advice(
    node: Node, driver: FakeDriver
) -> None:
    entry = Entry("0" * 16, "bound", "x", isolation="advice", cgroup=CGROUP)
    assert hard_limit.impose(entry, node) == "advice"
    assert driver.held == {}


def test_a_new_quota_and_what_is_lent_reach_the_driver(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    tenant = bound(node, program, memory="10GiB", memory_limit="200GiB", devices="0")
    assert driver.held[CARD, cgroup] == Limits(10 * GIB, 140 * GIB)
    other = opened(node, memory="100GiB", devices="0")
    assert driver.held[CARD, cgroup] == Limits(10 * GIB, 40 * GIB)
    set_quota(entry_of(node, tenant), {"memory": "20GiB", "memory-limit": "30GiB"}, node)
    assert driver.held[CARD, cgroup] == Limits(20 * GIB, 30 * GIB)
    set_quota(entry_of(node, tenant), {"memory-limit": "200GiB"}, node)
    end(other["key"], node, "it has ended")
    lend(node)
    assert driver.held[CARD, cgroup] == Limits(20 * GIB, 140 * GIB)


def test_a_driver_that_does_not_follow_holds_no_more_and_refuses_nobody(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes]
) -> None:
    tenant = bound(node, program, memory="10GiB", devices="0")
    driver.refusal = "no"
    row = tenant_row(set_quota(entry_of(node, tenant), {"memory": "20GiB"}, node), node)
    assert (row["isolation"], row["cards"][0]["limit_bytes"]) == ("interposer", 20 * GIB)
    assert driver.held == {}


def test_another_driver_is_told_the_limits_anew(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    tenant = bound(node, program, memory="10GiB", devices="0")
    driver.held.clear()
    driver.driver_version = "620.10"
    node.decide.run(lambda: startup.understand(node, driver.generation))
    assert driver.held[CARD, cgroup] == Limits(10 * GIB, 10 * GIB)
    assert entry_of(node, tenant).isolation == "driver"
    driver.has_limits, driver.driver_version = False, "580.1"
    node.decide.run(lambda: startup.understand(node, driver.generation))
    assert entry_of(node, tenant).isolation == "interposer"


def test_the_limits_end_with_the_tenant(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    tenant = bound(node, program, memory="4GiB")
    end(tenant["key"], node, "it has ended")
    assert driver.held == {}
    tenant = bound(node, program, memory="4GiB")
    cgroup.rmdir()
    end(tenant["key"], node, "it has ended")  # and the driver's limits with the cgroup
    assert len(driver.held) == 1


def test_a_daemon_that_starts_again_sets_them_again(
    tmp_path: Path, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    with fakes.node(tmp_path, driver) as before:
        tenant = bound(before, program, memory="4GiB", devices="0")
    driver.held.clear()
    with fakes.node(tmp_path, driver) as after:
        adopt(after)
        assert driver.held == {(CARD, cgroup): Limits(4 * GIB, 4 * GIB)}
        assert entry_of(after, tenant).isolation == "driver"
    driver.has_limits = False
    with fakes.node(tmp_path, driver) as after:
        adopt(after)
        assert entry_of(after, tenant).isolation == "interposer"


def silent(*_: object) -> None:
    raise DriverError("the NVIDIA driver does not answer")


def test_what_a_silent_driver_still_holds_is_set_right_when_it_answers(
    node: Node,
    driver: FakeDriver,
    program: subprocess.Popen[bytes],
    cgroup: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its program was told of more than the driver would give it."""
    tenant = bound(node, program, memory="10GiB", devices="0")
    with monkeypatch.context() as patched:
        patched.setattr(driver, "set_limits", silent)
        set_quota(entry_of(node, tenant), {"memory": "20GiB"}, node)
        reconcile(node)
        assert driver.held[CARD, cgroup] == Limits(10 * GIB, 10 * GIB)
        assert entry_of(node, tenant).isolation == "interposer"
    reconcile(node)
    assert driver.held[CARD, cgroup] == Limits(20 * GIB, 20 * GIB)
    assert entry_of(node, tenant).isolation == "driver"
    driver.held.clear()
    reconcile(node)
    assert driver.held == {}, "once is enough"


def test_a_driver_that_is_loaded_late_is_told_what_was_changed_without_it(
    tmp_path: Path, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    with fakes.node(tmp_path, driver) as before:
        tenant = bound(before, program, memory="4GiB", devices="0")
    with fakes.node(tmp_path, driver) as after:
        loaded, after.driver = after.driver, None
        adopt(after)
        reconcile(after)
        assert entry_of(after, tenant).isolation == "driver", "it holds without the daemon"
        hard_limit.change(entry_of(after, tenant), 0, 5 * GIB, after)
        after.driver = loaded
        reconcile(after)
        assert driver.held == {(CARD, cgroup): Limits(4 * GIB, 5 * GIB)}
