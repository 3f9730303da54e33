# SPDX-License-Identifier: Apache-2.0
"""A node without root or cards, and a process to bind tenants to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.core import log

from . import fake_process, fakes
from .fake_process import FakeProcess
from .fakes import FakeDaemon, FakeDriver


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver(fakes.card(0), fakes.card(1))) as made:
        yield made


@pytest.fixture(autouse=True)
def processes_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fakes.without_threads(monkeypatch)
    with fake_process.seen(monkeypatch):
        yield


@pytest.fixture
def program() -> FakeProcess:
    return FakeProcess()


@pytest.fixture(autouse=True)
def fresh_log_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test find the allowances of the log spent by another."""
    monkeypatch.setattr(log, "_budget", log.LogBudget())
