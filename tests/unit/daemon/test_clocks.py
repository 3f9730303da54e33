# SPDX-License-Identifier: Apache-2.0
"""The wall clock may jump: nothing that is decided looks at it."""

from __future__ import annotations

import ast
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpushare.daemon
from gpushare.daemon import clock
from gpushare.daemon.life import release
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node

from .operations import opened

SOURCES = Path(gpushare.daemon.__file__).parent
_READS = frozenset({"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"})

#: Where the time of day is read, and why nothing that is promised, held or ended rests on it.
SHOWN_ONLY = {
    "audit/audit.py": "since when somebody has more than it may, as it is shown",
    "compute/spent.py": "when a tenant was last at work, as it is shown",
    "control/freezer.py": "since when somebody is held, as it is shown",
    "memory/lacked.py": "when a tenant last lacked what it was promised, as it is shown",
    "life/recover.py": "`created`, as it is shown",
    "life/reserve.py": "`created`, as it is shown",
    "log.py": "the time of a line",
    "node.py": "since when the daemon serves, as metrics have it",
    "store/installations.py": "a folder that nobody has goes some time after it was made",
    "store/history.py": "when an event was, and how long it is kept",
    "tenants.py": "when an allocation was last refused, as it is shown",
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


def test_no_clock_that_can_be_set_is_asked_by_its_number() -> None:
    asking = [
        str(source.relative_to(SOURCES))
        for source in SOURCES.rglob("*.py")
        if "CLOCK_REALTIME" in source.read_text() or "CLOCK_TAI" in source.read_text()
    ]
    assert asking == []


@pytest.mark.parametrize("years", [-20, 20])
def test_a_clock_that_jumps_ends_and_keeps_nobody(
    node: Node,
    program: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    years: int,
) -> None:
    """The one that waits goes on waiting, the one that runs runs, the one that is late expires."""
    waiting, late = opened(node, memory="1GiB"), opened(node, memory="2GiB")
    running = opened(node, memory="4GiB")
    bind(running["key"], running["id"], program.pid, os.getpid(), node)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + years * 365 * 86400)
    release.reconcile(node)
    assert set(node.ledger.entries) == {waiting["key"], late["key"], running["key"]}
    expires = node.ledger.entries[late["key"]].expires
    monkeypatch.setattr(clock, "boottime", lambda: expires)
    release.reconcile(node)
    assert late["key"] not in node.ledger.entries
    assert running["key"] in node.ledger.entries
