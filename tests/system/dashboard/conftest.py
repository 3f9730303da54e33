# SPDX-License-Identifier: Apache-2.0
"""A gpushared with a card and two containers, and an hour of history of the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.history.store import HistoryStore
from gpushare.metrics_schema import Metrics
from tests.system.dashboard.served import ServedDashboard, options_of, served
from tests.threads.cli.conftest import daemon
from tests.unit.cli.fake_daemon import AnsweringDaemon
from tests.unit.exporter import made

__all__ = ["daemon"]
KEY = "0123456789abcdef"  # of `train` of the daemon, too
SAMPLES = 360
GIB = 1 << 30


@pytest.fixture(scope="session")
def end() -> float:
    """When the history ends: now, at the beginning of a minute."""
    return time.time() // 60 * 60


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory, end: float) -> Path:
    """The folder of a history of one hour, in which the second half hour has a gap of 10 min."""
    folder = tmp_path_factory.mktemp("history") / "metrics-history"
    store = HistoryStore(folder)
    first = end - 10 * SAMPLES
    for number in range(1, SAMPLES):
        if 240 < number <= 300:
            continue
        part = made.part(used_bytes=number * GIB // 100, throttled_ns=number * 10**9)
        tenant = made.tenant("train", key=KEY, created=first, cards=[part])
        node = made.node(started=first)
        store.write(first + 10 * number, Metrics([made.card()], [tenant], node))
    store.close()
    return folder


@pytest.fixture
def site(daemon: AnsweringDaemon, history: Path) -> Iterator[ServedDashboard]:
    with served(options_of(daemon.path, history)) as found:
        yield found
