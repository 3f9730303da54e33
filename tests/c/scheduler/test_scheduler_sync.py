# SPDX-License-Identifier: Apache-2.0
"""The daemon keeps a scheduler running, and informed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync
from gpushare.daemon import scheduler_sync as schedule_message
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.scheduler_sync import Scheduler, SchedulerLost, SchedulerSync
from gpushare.daemon.views.daemon_status import status_row
from gpushare.protocol import HostProcessGrant
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.operations import opened

Bound = Callable[..., HostProcessGrant]


@pytest.fixture
def installed(tmp_path: Path, program: Path) -> Path:
    """The scheduler where the daemon looks for it."""
    place = tmp_path / "bin" / scheduler_sync.PROGRAM
    place.parent.mkdir()
    shutil.copy(program, place)
    return place


@contextmanager
def running(
    folder: Path, *, leave: bool = False
) -> Iterator[tuple[fakes.FakeDaemon, SchedulerSync]]:
    """A daemon, as far as shares of compute are concerned.

    With `leave` its scheduler goes on afterwards.
    """
    driver = fakes.FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(folder, driver, threaded=True) as node:
        loop = threading.Thread(target=node.loop.run)
        loop.start()
        # Tests create and bind on a thread of their own, where the loop does not wake by itself.
        node.loop.soon = node.loop.call  # type: ignore[method-assign]
        made = SchedulerSync(node)
        node.ledger.changed.listeners.append(made.changed)
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
def daemon(tmp_path: Path, installed: Path) -> Iterator[tuple[fakes.FakeDaemon, SchedulerSync]]:
    del installed
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def node(daemon: tuple[fakes.FakeDaemon, SchedulerSync]) -> fakes.FakeDaemon:
    return daemon[0]


@pytest.fixture
def bound(node: fakes.FakeDaemon) -> Iterator[Bound]:
    """Open tenants, and bind each to a process of its own."""
    with ExitStack() as stack:

        def made(**quota: str) -> HostProcessGrant:
            tenant = opened(node, **quota)
            pid = stack.enter_context(process())
            bind(tenant["key"], tenant["id"], pid, os.getpid(), node)
            return tenant

        yield made


def socket_of(node: fakes.FakeDaemon) -> Path:
    return node.node.config.run_dir / scheduler_sync.SOCKET


def scheduler_of(node: fakes.FakeDaemon) -> Scheduler | None:
    """Return a connection of our own to the scheduler, None where none listens."""
    try:
        return Scheduler.connect(socket_of(node))
    except SchedulerLost:
        return None


def pid_of(node: fakes.FakeDaemon) -> int:
    """Return the scheduler that the daemon has reached, 0 where it has none.

    It is not asked: it ends with its last client, and before the daemon we would be the only one.
    """
    return node.node.scheduler_pid


def end_scheduler(node: fakes.FakeDaemon) -> None:
    found = scheduler_of(node)
    if found is not None:
        found.end()
        found.close()


def gate(node: fakes.FakeDaemon, tenant: HostProcessGrant, offset: int, card: int = 0) -> int:
    path = node.mounts.path(tenant["key"]) / abi.GRANT_NAME
    with path.open("rb") as file:
        found = os.pread(file.fileno(), 4, abi.gate_offset(card) + offset)
    return int.from_bytes(found, "little")


def permille(node: fakes.FakeDaemon, tenant: HostProcessGrant) -> int:
    return gate(node, tenant, abi.GATE_SELF_THROTTLE_PERMILLE)


def test_a_tenant_that_the_scheduler_lacks_is_sent_again(
    daemon: tuple[fakes.FakeDaemon, SchedulerSync], bound: Bound
) -> None:
    node, sync = daemon
    tenant = bound(memory="1GiB", cores="30")
    wait_until(lambda: permille(node, tenant) == 300)
    other = scheduler_of(node)
    assert other is not None
    with closing(other):
        assert (
            other.send(schedule_message.message(schedule_message.REMOVE, tenant["key"])).tenants
            == 0
        )
        sync.check()
        wait_until(
            lambda: other.send(schedule_message.message(schedule_message.COMPLETE)).tenants == 1
        )


def test_a_scheduler_that_dies_is_restarted_and_informed(
    node: fakes.FakeDaemon, bound: Bound, capfd: pytest.CaptureFixture[str]
) -> None:
    tenant = bound(memory="4GiB", cores="30")
    wait_until(lambda: permille(node, tenant) == 300)
    killed = pid_of(node)
    beat = gate(node, tenant, abi.GATE_HEARTBEAT_NS)
    capfd.readouterr()  # the first start, which may have been before the test began to read
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pid_of(node) not in {0, killed})
    wait_until(lambda: gate(node, tenant, abi.GATE_HEARTBEAT_NS) != beat)
    wait_until(lambda: not node.node.scheduler_fault)
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert status_row(node)["scheduler_pid"] == pid_of(node)
    assert "scheduler-lost" in events  # twice where it was being told something as it died
    assert events.count("scheduler-started") == 1
    assert not Path(f"/proc/{killed}").exists()  # and no zombie is left of it


def test_one_that_hangs_is_replaced(
    daemon: tuple[fakes.FakeDaemon, SchedulerSync], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.daemon.scheduler_sync._ANSWER_SECONDS", 0.5)
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
    with process() as pid:  # a scheduler without a tenant ends with its client
        with running(tmp_path, leave=True) as (node, _):
            tenant = opened(node, memory="4GiB", cores="30")
            bind(tenant["key"], tenant["id"], pid, os.getpid(), node)
            wait_until(lambda: permille(node, tenant) == 300)
            before = pid_of(node)
        with running(tmp_path) as (node, made):
            release.adopt_tenants(node, node.freezer)
            made.check()
            wait_until(lambda: pid_of(node) != 0)
            assert pid_of(node) == before
            # Read once: it loses what comes then.
            assert "scheduler-adopted" in capfd.readouterr().err


@contextmanager
def process() -> Iterator[int]:
    started = subprocess.Popen(["sleep", "1000"])
    try:
        yield started.pid
    finally:
        started.kill()
        started.wait()


def test_one_of_another_version_is_replaced(
    daemon: tuple[fakes.FakeDaemon, SchedulerSync], installed: Path
) -> None:
    node, made = daemon
    wait_until(lambda: pid_of(node) != 0)
    before = pid_of(node)
    newer = installed.with_suffix(".new")
    shutil.copy(installed, newer)
    newer.replace(installed)
    made.check()
    wait_until(lambda: pid_of(node) not in {0, before})


def test_it_is_tried_again_until_there_is_one(tmp_path: Path, program: Path) -> None:
    with running(tmp_path) as (node, _):
        wait_until(lambda: bool(node.node.scheduler_fault))
        [warning] = [text for text in status_row(node)["warnings"] if "shares" in text]
        assert warning.startswith("no scheduler enforces compute shares: ")
        assert "No such file or directory" in warning
        (tmp_path / "bin").mkdir()
        shutil.copy(program, tmp_path / "bin" / "draft")
        (tmp_path / "bin" / "draft").rename(tmp_path / "bin" / scheduler_sync.PROGRAM)
        wait_until(lambda: not node.node.scheduler_fault)
        assert pid_of(node) != 0


def test_a_share_that_it_refuses_is_reported(
    node: fakes.FakeDaemon, bound: Bound, capfd: pytest.CaptureFixture[str]
) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    (node.mounts.path(tenant["key"]) / abi.WAKEUP_NAME).unlink()
    with process() as pid:
        bind(tenant["key"], tenant["id"], pid, os.getpid(), node)
        wait_until(lambda: "the share of" in node.node.scheduler_fault)
        assert "share-rejected" in capfd.readouterr().err
        release.release_tenant(tenant["key"], node, "test")
        wait_until(lambda: not node.node.scheduler_fault)
    bound(memory="1GiB")
