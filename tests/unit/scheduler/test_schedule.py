# SPDX-License-Identifier: Apache-2.0
"""The daemon keeps a scheduler running, and told."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.compute import message as schedule_message
from gpushare.daemon.compute import schedule
from gpushare.daemon.compute.process import Scheduler, SchedulerLost
from gpushare.daemon.compute.schedule import Schedule
from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.life import release
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.daemon.views import rows as views
from gpushare.protocol import Opened
from tests.unit.daemon import fakes
from tests.unit.daemon.operations import entry_of, opened

from .tenant import wait_until

Bound = Callable[..., Opened]


@pytest.fixture
def installed(tmp_path: Path, program: Path) -> Path:
    """The scheduler where the daemon looks for it."""
    place = tmp_path / "bin" / schedule.PROGRAM
    place.parent.mkdir()
    shutil.copy(program, place)
    return place


@contextmanager
def running(folder: Path, *, leave: bool = False) -> Iterator[tuple[Node, Schedule]]:
    """A daemon, as far as shares of compute are concerned.

    With `leave` its scheduler goes on afterwards.
    """
    with fakes.node(folder, fakes.FakeDriver(fakes.card(0), fakes.card(1))) as node:
        loop = threading.Thread(target=node.loop.run)
        loop.start()
        # Tests create and bind on a thread of their own, where the loop does not wake by itself.
        node.loop.soon = node.loop.call  # type: ignore[method-assign]
        made = Schedule(node)
        node.shares_changed = made.changed
        made.check()
        try:
            yield node, made
        finally:
            made.close(5)
            node.loop.stop()
            loop.join()
            if not leave:
                end_scheduler(node)


@pytest.fixture
def daemon(tmp_path: Path, installed: Path) -> Iterator[tuple[Node, Schedule]]:
    del installed
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def node(daemon: tuple[Node, Schedule]) -> Node:
    return daemon[0]


@pytest.fixture
def bound(node: Node) -> Iterator[Bound]:
    """Open tenants, and bind each to a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def made(**quota: str) -> Opened:
        tenant = opened(node, **quota)
        started.append(subprocess.Popen(["sleep", "1000"]))
        bind(tenant["key"], tenant["id"], started[-1].pid, os.getpid(), node)
        return tenant

    yield made
    for process in started:
        process.kill()
        process.wait()


def socket_of(node: Node) -> Path:
    return node.config.run_dir / schedule.SOCKET


def scheduler_of(node: Node) -> Scheduler | None:
    """Return a connection of our own to the scheduler, None where none listens."""
    try:
        return Scheduler.connect(socket_of(node))
    except SchedulerLost:
        return None


def pid_of(node: Node) -> int:
    """Return the scheduler that the daemon has reached, 0 where it has none.

    It is not asked: it ends with its last client, and before the daemon we would be the only one.
    """
    return node.scheduler_pid


def end_scheduler(node: Node) -> None:
    found = scheduler_of(node)
    if found is not None:
        found.end()
        found.close()


def gate(node: Node, tenant: Opened, offset: int, card: int = 0) -> int:
    path = node.mounts.path(tenant["key"]) / abi.GRANT_NAME
    with path.open("rb") as file:
        found = os.pread(file.fileno(), 4, abi.gate_offset(card) + offset)
    return int.from_bytes(found, "little")


def permille(node: Node, tenant: Opened) -> int:
    return gate(node, tenant, abi.GATE_ALONE_PERMILLE)


def test_who_is_bound_is_told_with_its_share(node: Node, bound: Bound) -> None:
    tenant = bound(memory="4GiB", cores="30")
    wait_until(lambda: permille(node, tenant) == 300)
    assert gate(node, tenant, abi.GATE_MODE) == abi.GATE_CLOSED


def test_who_is_only_reserved_is_not_told(node: Node, bound: Bound) -> None:
    reserved = opened(node, memory="4GiB", cores="20", devices="0")
    tenant = bound(memory="4GiB", cores="30", devices="0")
    wait_until(lambda: permille(node, tenant) == 300)
    assert permille(node, reserved) == 0


def test_a_whole_card_is_not_told(node: Node, bound: Bound) -> None:
    bound(count="1")
    tenant = bound(memory="4GiB", cores="30")
    wait_until(lambda: permille(node, tenant) == 300)
    assert set(schedule.parts(node)) == {tenant["key"]}


def test_a_set_is_told_at_once(node: Node, bound: Bound) -> None:
    tenant = bound(memory="4GiB", cores="30")
    wait_until(lambda: permille(node, tenant) == 300)
    set_quota(entry_of(node, tenant), {"cores": "40"}, node)
    wait_until(lambda: permille(node, tenant) == 400)


def test_a_new_tenant_changes_the_others_parts(node: Node, bound: Bound) -> None:
    first = bound(memory="1GiB", devices="0")
    wait_until(lambda: permille(node, first) == 1000)
    second = bound(memory="1GiB", devices="0")
    wait_until(lambda: permille(node, first) == permille(node, second) == 500)
    release.end(second["key"], node, "test")
    wait_until(lambda: permille(node, first) == 1000)


def test_one_that_dies_is_started_again_and_told(
    node: Node, bound: Bound, capfd: pytest.CaptureFixture[str]
) -> None:
    tenant = bound(memory="4GiB", cores="30")
    wait_until(lambda: permille(node, tenant) == 300)
    killed = pid_of(node)
    beat = gate(node, tenant, abi.GATE_HEARTBEAT_NS)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pid_of(node) not in {0, killed})
    wait_until(lambda: gate(node, tenant, abi.GATE_HEARTBEAT_NS) != beat)
    wait_until(lambda: not node.scheduler_fault)
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert views.status_row(node)["scheduler"] == pid_of(node)
    assert "scheduler-lost" in events  # twice where it was being told something as it died
    assert events.count("scheduler-started") == 2


def test_one_that_dies_is_no_zombie(node: Node) -> None:
    wait_until(lambda: pid_of(node) != 0)
    killed = pid_of(node)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{killed}").exists())


def test_one_that_hangs_is_replaced(
    daemon: tuple[Node, Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.daemon.compute.process._ANSWER_SECONDS", 0.5)
    node, made = daemon
    wait_until(lambda: pid_of(node) != 0)
    hanging = pid_of(node)
    made.check()
    pidfd = os.pidfd_open(hanging)
    try:
        os.kill(hanging, signal.SIGSTOP)
        made.check()
        assert select.select([pidfd], [], [], 20)[0]
    finally:
        os.close(pidfd)
    wait_until(lambda: pid_of(node) not in {0, hanging})


def test_it_outlives_the_daemon_and_is_found_again(
    tmp_path: Path, installed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del installed
    with running(tmp_path, leave=True) as (node, _), process() as pid:
        tenant = opened(node, memory="4GiB", cores="30")
        bind(tenant["key"], tenant["id"], pid, os.getpid(), node)
        wait_until(lambda: permille(node, tenant) == 300)
        before = pid_of(node)
    with running(tmp_path) as (node, made):
        release.adopt(node)
        made.check()
        wait_until(lambda: "scheduler-adopted" in capfd.readouterr().err)
        wait_until(lambda: pid_of(node) != 0)
        assert pid_of(node) == before


@contextmanager
def process() -> Iterator[int]:
    started = subprocess.Popen(["sleep", "1000"])
    try:
        yield started.pid
    finally:
        started.kill()
        started.wait()


def test_one_of_another_version_is_replaced(daemon: tuple[Node, Schedule], installed: Path) -> None:
    node, made = daemon
    wait_until(lambda: pid_of(node) != 0)
    before = pid_of(node)
    newer = installed.with_suffix(".new")
    shutil.copy(installed, newer)
    newer.replace(installed)
    made.check()
    wait_until(lambda: pid_of(node) not in {0, before})


def test_one_that_takes_the_time_of_another_driver_is_replaced(
    daemon: tuple[Node, Schedule],
) -> None:
    node, made = daemon
    wait_until(lambda: pid_of(node) != 0)
    before = pid_of(node)
    assert node.driver is not None
    node.driver = replace(node.driver, slow_motion=20.0)
    made.check()
    wait_until(lambda: pid_of(node) not in {0, before})
    found = scheduler_of(node)
    assert found is not None
    with closing(found):
        assert found.tell(schedule_message.remove("0" * 16)).slow == 20


def test_without_one_the_status_says_that_nothing_holds(tmp_path: Path) -> None:
    with running(tmp_path) as (node, _):
        wait_until(lambda: bool(node.scheduler_fault))
        [warning] = [text for text in views.status_row(node)["warnings"] if "shares" in text]
        assert warning.startswith("no scheduler holds shares of compute: ")
        assert views.status_row(node)["scheduler"] == 0
        assert "No such file or directory" in warning


def test_it_is_tried_again_until_there_is_one(tmp_path: Path, program: Path) -> None:
    with running(tmp_path) as (node, _):
        wait_until(lambda: bool(node.scheduler_fault))
        (tmp_path / "bin").mkdir()
        shutil.copy(program, tmp_path / "bin" / "draft")
        (tmp_path / "bin" / "draft").rename(tmp_path / "bin" / schedule.PROGRAM)
        wait_until(lambda: not node.scheduler_fault)
        assert pid_of(node) != 0


def test_a_share_that_it_refuses_is_told(
    node: Node, bound: Bound, capfd: pytest.CaptureFixture[str]
) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    (node.mounts.path(tenant["key"]) / abi.BELL_NAME).unlink()
    with process() as pid:
        bind(tenant["key"], tenant["id"], pid, os.getpid(), node)
        wait_until(lambda: "the share of" in node.scheduler_fault)
        assert "share-refused" in capfd.readouterr().err
        release.end(tenant["key"], node, "test")
        wait_until(lambda: not node.scheduler_fault)
    bound(memory="1GiB")
