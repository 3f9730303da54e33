# SPDX-License-Identifier: Apache-2.0
"""The last figures of released tenants: complete, for a minute, and never a reason to keep one."""

from __future__ import annotations

import os
import time

import pytest

from gpushare import abi
from gpushare.daemon.lifecycle.release import release_tenant
from gpushare.daemon.views import metrics
from gpushare.daemon.views.metrics import ended_rows

from . import registered
from .fakes import GIB, FakeDaemon
from .operations import opened, tenant_rows
from .test_compute_usage import MS, ScheduledGate
from .test_metrics import waited
from .test_placement import ask_node as ask


@pytest.fixture
def course(node: FakeDaemon) -> ScheduledGate:
    return ScheduledGate(node, opened(node, memory="4GiB", cores="30", devices="0"))


def charge(course: ScheduledGate, milliseconds: int) -> None:
    """Have the scheduler charge the tenant after the last look."""
    course.charged_ns += milliseconds * MS
    course.write(abi.GATE_MODE, course.mode, 4)
    course.write(abi.GATE_CHARGED_NS, course.charged_ns)


def test_the_last_figures_have_what_came_after_the_last_look(
    node: FakeDaemon, course: ScheduledGate
) -> None:
    fd = node.tenants.pages[course.tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    waited(fd, 1)
    course.looks(3, got_ms=75)
    [before] = tenant_rows(node)
    charge(course, 60)
    waited(fd, 2)
    began = time.time()
    release_tenant(course.tenant["key"], node, "its process has ended")
    assert not tenant_rows(node)
    [last] = ended_rows(node.tenants)
    assert (last["key"], last["created"]) == (before["key"], before["created"])
    assert began <= last["ended"] <= time.time()
    [part], [earlier] = last["cards"], before["cards"]
    assert part["quota_bytes"] == 4 * GIB
    assert part["gpu_seconds"] == pytest.approx(earlier["gpu_seconds"] + 0.060)
    assert part["compute"]["throttled_ns"] == earlier["compute"]["throttled_ns"] + 10**9
    # Any number of clients see it, and the rows of the others are as before.
    for _ in range(2):
        assert [row["ended"] for row in ask(node, "metrics") if "ended" in row] == [last]
    assert not [row for row in ask(node, "metrics") if "tenant" in row]


def test_a_fault_of_the_figures_keeps_no_tenant(
    node: FakeDaemon, course: ScheduledGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "tenant_row", lambda *_: 1 / 0)
    release_tenant(course.tenant["key"], node, "its process has ended")
    assert not node.ledger.entries
    assert not list(ended_rows(node.tenants))
