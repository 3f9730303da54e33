# SPDX-License-Identifier: Apache-2.0
"""The wall clock may jump: nothing that is decided looks at it."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpushare.daemon
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind

from .fake_process import FakeProcess
from .fakes import FakeDaemon
from .operations import opened

SOURCES = Path(gpushare.daemon.__file__).parent
_READS = frozenset({"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"})

#: Where the time of day is read, and why nothing that is allocated, held or ended rests on it.
SHOWN_ONLY = {
    "audit/audit.py": "since when a tenant is over quota, as it is shown",
    "observe/compute_usage.py": "when a tenant was last at work, as it is shown",
    "freezer.py": "since when a tenant is frozen, as it is shown",
    "mps/card.py": "since when a tenant has lost its MPS server, as it is shown",
    "limits.py": "when a tenant last had a shortfall, as it is shown",
    "eviction/preconditions.py": "since when a tenant is evicted, as it is shown",
    "eviction/steps.py": "since when a tenant is evicted, as it is shown",
    "eviction/evictions.py": "since when a tenant is restored or waits for it, as it is shown",
    "lifecycle/recover.py": "`created`, as it is shown",
    "lifecycle/reserve.py": "`created`, as it is shown",
    "core/loop.py": "for the queue: since when a start waits, as it is shown",
    "core/log.py": "the time of a line",
    "state.py": "since when the daemon serves, as metrics have it",
    "lifecycle/queue.py": "since when a start waits, and when it was granted, as it is shown",
    "observe/time_limits.py": "since when a tenant is idle, and when it is stopped, as it is shown",
    "views/metrics.py": "how long a start has waited, when a tenant ended, as metrics have it",
    "lifecycle/old_installations.py": "an unused folder is removed some time after it was made",
    "store/history.py": "when an event was, and how long it is kept",
    "pages/tenants.py": "when an allocation was last refused, as it is shown",
}


def readers() -> Iterator[str]:
    """Yield the files of the daemon that read the time of day."""
    for source in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr not in _READS:
                continue
            of = node.value.attr if isinstance(node.value, ast.Attribute) else None
            of = node.value.id if isinstance(node.value, ast.Name) else of
            if of in {"time", "datetime", "date"}:
                yield str(source.relative_to(SOURCES))


def test_the_time_of_day_is_read_where_it_is_only_shown() -> None:
    assert set(readers()) <= SHOWN_ONLY.keys()


def test_no_settable_clock_is_read_by_its_number() -> None:
    asking = [
        str(source.relative_to(SOURCES))
        for source in SOURCES.rglob("*.py")
        if "CLOCK_REALTIME" in source.read_text() or "CLOCK_TAI" in source.read_text()
    ]
    assert asking == []


@pytest.mark.parametrize("years", [-20, 20])
def test_a_clock_jump_ends_and_delays_nothing(
    node: FakeDaemon,
    program: FakeProcess,
    monkeypatch: pytest.MonkeyPatch,
    years: int,
) -> None:
    """The one that waits goes on waiting, the one that runs runs, the one that is late expires."""
    waiting, late = opened(node, memory="1GiB"), opened(node, memory="2GiB")
    running = opened(node, memory="4GiB")
    bind(running["key"], running["id"], program.pid, os.getpid(), node)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + years * 365 * 86400)
    release.reconcile_tenants(node, node.freezer)
    assert set(node.ledger.entries) == {waiting["key"], late["key"], running["key"]}
    expires = node.ledger.entries[late["key"]].expires
    monkeypatch.setattr(release, "boottime", lambda: expires)
    release.reconcile_tenants(node, node.freezer)
    assert late["key"] not in node.ledger.entries
    assert running["key"] in node.ledger.entries
