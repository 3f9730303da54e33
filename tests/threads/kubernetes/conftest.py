# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.threads.kubernetes.gpushared import Clock, FakeGpushared
from tests.unit.kubernetes.conftest import api, certificate, cluster, connect

__all__ = ["api", "certificate", "cluster", "connect"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kubelet's folder, whose path is short: a socket's is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        yield Path(made)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def daemon() -> FakeGpushared:
    return FakeGpushared()
