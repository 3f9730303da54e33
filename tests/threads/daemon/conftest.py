# SPDX-License-Identifier: Apache-2.0
"""A node as in tests/unit/daemon, with the daemon's own threads and sockets."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.unit.daemon import fakes
from tests.unit.daemon.conftest import fresh_log_budget, node

__all__ = ["fresh_log_budget", "node"]


@pytest.fixture(autouse=True)
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "THREADED", True)


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "1000"])
    yield started
    started.kill()
    started.wait()
