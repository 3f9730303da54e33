# SPDX-License-Identifier: Apache-2.0
"""The process of the metrics history runs as configured, and is started again when it has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.store import metrics_history
from gpushare.daemon.store.metrics_history import MetricsHistory, process_arguments
from tests.system.waiting import wait_until


class WatchedHistory:
    """A history whose process finds no control socket."""

    def __init__(self, folder: Path) -> None:
        self.config = Config(run_dir=folder / "run", state_dir=folder)
        self.history = MetricsHistory(process_arguments(self.config, None))

    def until(self, is_so: Callable[[], bool]) -> None:
        """Check again and again, as the daemon does, until it is so."""

        def look() -> bool:
            self.history.check()
            return is_so()

        wait_until(look)

    def pid(self, but: int = 0) -> int:
        """Return the process, once there is one that is not `but`."""
        self.until(lambda: self.history.pid not in {0, but})
        return self.history.pid


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedHistory]:
    monkeypatch.setattr(metrics_history, "_FIRST_WAIT_SECONDS", 0.01)
    made = WatchedHistory(tmp_path)
    yield made
    made.history.close()
    made.until(lambda: not made.history.pid)


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def test_a_process_that_is_killed_is_started_again(kept: WatchedHistory) -> None:
    first = kept.pid()
    os.kill(first, signal.SIGKILL)
    kept.until(lambda: "ended (signal SIGKILL)" in kept.history.fault)
    second = kept.pid(but=first)
    kept.until(lambda: "gpushared is not running" in kept.history.fault)
    assert command_line(second)[-5:] == [
        str(kept.config.socket),
        str(kept.config.state_dir / "metrics-history"),
        "7",
        "",
        "",
    ]
