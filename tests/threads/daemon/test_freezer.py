# SPDX-License-Identifier: Apache-2.0
"""Freezing tenants: the journal comes first, and a tenant without a reason is thawed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpushare.daemon.freezer import freezer as module
from gpushare.daemon.identity import processes
from gpushare.host.cgroups import CgroupFreezer
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.test_freezer import CGROUP, KEY, FakeCgroup, add


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeCgroup:
    made = FakeCgroup()

    def own_groups(*_: object) -> dict[str, CgroupFreezer]:
        return {CGROUP: made}

    monkeypatch.setattr(module, "freezable_groups", own_groups)
    monkeypatch.setattr(module, "cgroup_freezer", lambda *_: made)
    monkeypatch.setattr(processes.Cgroups, "processes", lambda *_: [4, 5])
    monkeypatch.setattr(processes, "is_being_killed", lambda pid: pid == 5)
    monkeypatch.setattr(processes, "is_nobodys_program", lambda _: False)
    return made


@pytest.fixture
def held(node: FakeDaemon) -> Iterator[FakeDaemon]:
    """A node whose one tenant runs."""
    add(node)
    yield node
    node.ledger.close()


def test_a_deciding_thread_that_is_busy_delays_no_freeze_and_no_kill(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    store = held.ledger.store_freezes
    held.ledger.freezes.store = lambda key: held.decide.submit(lambda: store(key))
    release = threading.Event()
    held.decide.submit(release.wait)
    try:
        held.freezing.run(lambda: held.freezer.freeze(KEY, "audit", "over"))
        assert group.frozen
        held.freezing.run(lambda: held.freezer.kill(KEY, "over for 2 s"))
        assert group.killed
    finally:
        release.set()
    held.decide.run(lambda: None)
    assert [freeze.by for freeze in held.ledger.freezes.of(KEY)] == ["audit", "stop"]
