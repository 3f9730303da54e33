# SPDX-License-Identifier: Apache-2.0
"""The process of the metrics history runs as configured, and is started again when it has ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.core.loop import Loop
from gpushare.daemon.store import metrics_history
from gpushare.daemon.store.metrics_history import MetricsHistory, process_arguments
from tests.system.waiting import wait_until


class WatchedHistory:
    """A history whose process finds no control socket, and a loop that runs."""

    def __init__(self, folder: Path) -> None:
        self.config = Config(run_dir=folder / "run", state_dir=folder)
        self.gid: int | None = None
        self.loop = Loop()
        self.history = MetricsHistory(self.loop, lambda: process_arguments(self.config, self.gid))
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()
        self.check()

    def check(self) -> None:
        self.loop.call(self.history.check)

    def pid(self, but: int = 0) -> int:
        """Return the process, once there is one that is not `but`."""
        wait_until(lambda: self.history.pid not in {0, but})
        return self.history.pid

    def close(self) -> None:
        self.loop.call(self.history.close)
        wait_until(lambda: not self.history.pid)
        self.loop.stop()
        self._thread.join()
        self.loop.close()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedHistory]:
    monkeypatch.setattr(metrics_history, "_FIRST_WAIT_SECONDS", 0.01)
    made = WatchedHistory(tmp_path)
    yield made
    made.close()


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def test_a_process_that_is_killed_is_started_again(kept: WatchedHistory) -> None:
    first = kept.pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: "ended (signal SIGKILL)" in kept.history.fault)
    second = kept.pid(but=first)
    wait_until(lambda: "gpushared is not running" in kept.history.fault)
    assert command_line(second)[-5:] == [
        str(kept.config.socket),
        str(kept.config.state_dir / "metrics-history"),
        "7",
        "",
        "",
    ]


def test_another_configuration_is_another_process(kept: WatchedHistory) -> None:
    first = kept.pid()
    kept.config = replace(kept.config, metrics_days=30, metrics_bytes=1 << 30)
    kept.gid = 7
    kept.check()
    second = kept.pid(but=first)
    # In the middle of an exec a process has no command line.
    wait_until(lambda: command_line(second)[-3:] == ["30", str(1 << 30), "7"])
    kept.config = replace(kept.config, metrics_days=0)
    kept.check()
    wait_until(lambda: not kept.history.pid)
    kept.check()
    wait_until(lambda: not kept.history.fault)
