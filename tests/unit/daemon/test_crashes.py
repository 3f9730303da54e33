# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed at every step of a tenant's life: nothing is lost or allocated twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages.grant_page import GrantPage
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.store.ledger import Ledger
from gpushare.quota.size import parse_size

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon

# What a killed process has open the kernel closes; here it is left to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

ME = HostCommand(name="train", uid=os.getuid(), rootless=False)


class Killed(BaseException):
    """SIGKILL: what would have been done after it is not done."""


#: What a daemon does between a request and its answer, and at a tenant's end.
STARTING = [
    (Ledger, "add"),
    (TenantMounts, "make"),
    (GrantPage, "make"),
    (StatusPage, "make"),
    (TenantSocket, "listen"),
    (Tenants, "add"),
]
ENDING = [(Tenants, "remove"), (TenantMounts, "remove"), (Ledger, "release")]


@contextmanager
def killed(where: type, step: str, *, before: bool) -> Iterator[None]:
    """End the daemon before or after `step`, so that it undoes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        real = getattr(where, step)

        def die(*arguments: object, **named: object) -> None:
            patch.undo()
            patch.setattr(release, "release_tenant", lambda *_: None)
            if not before:
                real(*arguments, **named)
            raise Killed

        patch.setattr(where, step, die)
        with pytest.raises(Killed):
            yield


def free_after(folder: Path) -> int:
    """Return what is free once the next daemon has found everything out."""

    def find_out() -> None:
        release.adopt_tenants(node, node.freezer)
        for entry in node.ledger.entries.values():
            if entry.state == "reserved":
                node.ledger.add(replace(entry, expires=boottime() - 1))
        release.reconcile_tenants(node, node.freezer)

    with fakes.again(folder) as node:
        node.decide.run(find_out)
        assert sorted(node.tenants.pages) == sorted(node.mounts.made())
        assert sorted(node.mounts.made()) == sorted(node.ledger.entries)
        return node.capacities()[0].available_bytes


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("where", "step"), STARTING)
def test_a_start_that_was_cut_off_costs_nothing_in_the_end(
    tmp_path: Path, where: type, step: str, before: bool
) -> None:
    with fakes.node(tmp_path) as node, killed(where, step, before=before):
        open_tenant(ME, {"memory": "4GiB"}, node)
    assert free_after(tmp_path) == 140 * GIB


def running(node: FakeDaemon, program: FakeProcess) -> str:
    tenant = open_tenant(ME, {"memory": "4GiB"}, node)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant["key"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("where", "step"), ENDING)
def test_an_end_that_was_cut_off_is_finished(
    tmp_path: Path, program: FakeProcess, where: type, step: str, before: bool
) -> None:
    with fakes.node(tmp_path) as node:
        key = running(node, program)
        program.kill()
        program.wait()
        with killed(where, step, before=before):
            release.release_if_gone(key, node, "it is gone")
    assert free_after(tmp_path) == 140 * GIB


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_while_binding_keeps_the_reservation_of_a_running_container(
    tmp_path: Path, program: FakeProcess, before: bool
) -> None:
    """The hook gets no answer, so the runtime gives the container up; or it was bound."""
    with fakes.node(tmp_path) as node, killed(Ledger, "bind", before=before):
        running(node, program)
    assert free_after(tmp_path) == (140 * GIB if before else 136 * GIB)


@pytest.mark.parametrize("memory", ["1GiB", "100GiB"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_change_leaves_one_quota_after_a_restart(
    tmp_path: Path, before: bool, memory: str
) -> None:
    """What the tenant reads and what others are not given are the same."""
    with fakes.node(tmp_path) as node:
        tenant = open_tenant(ME, {"memory": "4GiB"}, node)
        with killed(GrantPage, "set_memory", before=before):
            set_quota(node.ledger.entries[tenant["key"]], {"memory": memory}, node)
    with fakes.again(tmp_path) as node:
        release.adopt_tenants(node, node.freezer)
        [allocation] = node.ledger.entries[tenant["key"]].allocations
        grant = node.tenants.pages[tenant["key"]].grant
        assert grant.memory_bytes(0) == grant.limit_bytes(0) == allocation.memory_bytes
        assert allocation.memory_bytes == parse_size(memory)
