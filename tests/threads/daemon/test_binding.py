# SPDX-License-Identifier: Apache-2.0
"""bind, release, expiry and restarts: how long a reservation lasts."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import container_edits, create, release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import HostProcessGrant
from tests.system.waiting import wait_until
from tests.unit.daemon.bundles import BundleToCreate
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.operations import entry_of, grant, opened
from tests.unit.daemon.test_binding import bind_made, made_by, pidfd_of, shown
from tests.unit.daemon.test_driver_files import SHARE


def test_a_bundle_that_does_not_answer_keeps_no_thread_but_one(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ledger.add(
        TenantRecord(key="0" * 16, state="none", id="x", bundle=str(tmp_path), why="no GPU")
    )
    reads, answers = threading.Semaphore(0), threading.Event()

    def hang(_: Path) -> bool:
        reads.release()
        return answers.wait(60)

    monkeypatch.setattr(Path, "is_dir", hang)
    for _ in range(3):
        release.sweep_refusals(node)
    assert reads.acquire(timeout=60)
    node.decide.run(lambda: None)
    assert shown(node) == ["x"]
    answers.set()
    node.requests.finish(60)
    assert not reads.acquire(blocking=False)


def is_unbound(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    page = grant(node, tenant).read_bytes()
    return page[abi.GRANT_HEADER_UNBOUND]


def test_a_launcher_binds_its_child_by_a_pidfd(
    node: FakeDaemon, program: subprocess.Popen[bytes]
) -> None:
    tenant = made_by(node, os.getpid())
    assert is_unbound(node, tenant)
    with pidfd_of(program.pid) as pidfd:
        for _ in range(2):  # the launcher repeats it after a daemon that ended over it
            bind_made(node, tenant, pidfd)
    record = entry_of(node, tenant)
    assert (record.state, record.pid) == ("bound", program.pid)
    assert not is_unbound(node, tenant)


@pytest.mark.parametrize("later", [False, True])
def test_an_init_is_killed_only_if_it_is_found_abandoned_twice(
    node: FakeDaemon,
    program: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    later: bool,
) -> None:
    """crun deletes the pipe of a container that it starts before it writes to it."""
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    monkeypatch.setattr(release, "_STRANDED_SECONDS", 0.0)
    looks = [True, later]

    def is_stranded(_: int) -> bool:
        return looks.pop(0)

    monkeypatch.setattr(processes, "is_stranded", is_stranded)
    loop = threading.Thread(target=node.loop.run)
    loop.start()
    try:
        release.reconcile_tenants(node, node.freezer)
        wait_until(lambda: not looks)
        node.decide.run(lambda: None)
    finally:
        node.loop.stop()
        loop.join()
    assert (program.poll() is None) == (not later)


def test_an_image_that_does_not_answer_delays_no_other_container(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = BundleToCreate(tmp_path / "slow", SHARE, identity="slow")
    other = BundleToCreate(tmp_path / "other", SHARE, identity="other")
    reads, answers = threading.Event(), threading.Event()
    choose = container_edits.choose_files

    def hang(*arguments: Any) -> Any:
        if arguments[2].id == "slow":
            reads.set()
            answers.wait(60)
        return choose(*arguments)

    monkeypatch.setattr(container_edits, "choose_files", hang)
    done = threading.Event()

    def run() -> None:
        slow.create(node)
        done.set()

    node.creates.submit(run)
    assert reads.wait(60)
    assert other.create(node)["mode"] == "shared"
    node.decide.run(lambda: None)  # nor does it keep the decide thread
    answers.set()
    assert done.wait(60)
    assert {record.id for record in node.ledger.entries.values()} == {"slow", "other"}


def test_a_container_whose_earlier_create_hangs_is_refused_in_time(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    reads, answers = threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        reads.set()
        answers.wait(60)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(container_edits, "choose_files", hang)

    def run() -> None:
        with pytest.raises(OSError, match="Input/output"):
            container.create(node)

    node.creates.submit(run)
    assert reads.wait(60)
    with container.bundle() as bundle, pytest.raises(create.CreateAbandoned):
        create.create(replace(bundle, is_abandoned=lambda: True), node, node.room)
    answers.set()
