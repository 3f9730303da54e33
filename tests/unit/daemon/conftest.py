# SPDX-License-Identifier: Apache-2.0
"""A node without root or cards, and a process to bind tenants to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.core import log

from . import fakes
from .fakes import FakeDaemon, FakeDriver


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver(fakes.card(0), fakes.card(1))) as made:
        yield made


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "1000"])
    yield started
    started.kill()
    started.wait()


@pytest.fixture(autouse=True)
def fresh_log_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test find the allowances of the log spent by another."""
    monkeypatch.setattr(log, "_budget", log.LogBudget())
