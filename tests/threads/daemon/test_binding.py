# SPDX-License-Identifier: Apache-2.0
"""bind, release, expiry and restarts: how long a reservation lasts."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.store.record import TenantRecord
from tests.system.waiting import wait_until
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.operations import opened
from tests.unit.daemon.test_binding import shown


def test_the_end_of_the_process_is_the_end_of_the_tenant(
    node: FakeDaemon, program: subprocess.Popen[bytes]
) -> None:
    """No message arrives."""
    node.watch.ended = lambda key: node.decide.submit(lambda: release.handle_process_end(key, node))
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    loop = threading.Thread(target=node.loop.run)
    loop.start()
    try:
        program.kill()
        program.wait()
        wait_until(lambda: not node.ledger.entries)
    finally:
        node.loop.stop()
        loop.join()


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
