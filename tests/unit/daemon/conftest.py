# SPDX-License-Identifier: Apache-2.0
"""A node without root or cards, and a process to bind tenants to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.node import Node

from . import fakes
from .fakes import FakeDriver


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with fakes.node(tmp_path, FakeDriver(fakes.card(0), fakes.card(1))) as made:
        yield made


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "1000"])
    yield started
    started.kill()
    started.wait()
