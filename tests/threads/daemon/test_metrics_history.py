# SPDX-License-Identifier: Apache-2.0
"""The process of the metrics history runs as configured, and is started again when it has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpushare.config import Config
from gpushare.daemon.core.loop import Loop
from gpushare.daemon.store import metrics_history
from gpushare.daemon.store.metrics_history import MetricsHistory, process_arguments
from gpushare.history.reader import HistoryReader
from gpushare.history.store import HistoryStore
from tests.system.waiting import wait_until
from tests.unit.history.test_store import T0, container, metrics


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


def test_it_gives_way_to_everything_else(kept: WatchedHistory) -> None:
    pid = kept.pid()
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 10)
    wait_until(lambda: Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n")


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


def test_a_program_that_cannot_be_started_is_tried_again(
    kept: WatchedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept.pid()
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", "/nowhere/python3")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "/nowhere/python3: No such file" in kept.history.fault)
    assert kept.pid(but=first)


def test_a_history_that_is_closed_is_read_without_the_right_to_write() -> None:
    with TemporaryDirectory(prefix="gpushare-") as top:
        Path(top).chmod(0o711)  # unlike tmp_path and the folders above it
        _read_by_the_group(Path(top, "metrics-history"))


def _read_by_the_group(folder: Path) -> None:
    store = HistoryStore(folder, gid=12)
    store.write(T0, metrics(container()))
    for close in (False, True):  # while one writes, and after
        if close:
            store.close()
        pid = os.fork()
        if not pid:
            _read_as(folder, 12)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def _read_as(folder: Path, gid: int) -> Any:
    """End with the number of containers as exit status; in a child."""
    found = 99
    try:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(65534)
        with HistoryReader(folder) as reader:
            found = len(reader.containers(0, 2 * T0))
    finally:
        os._exit(found)


def test_the_process_ends_in_silence_if_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """As when gpushared was killed: its log has no traceback of another process."""
    asked = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(asked))
        listener.listen()
        words = [sys.executable, "-m", "gpushare.history", str(asked), str(tmp_path), "7", "", ""]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            listener.accept()[0].close()
            process.stdin.close()
            assert process.stderr.read() == b""
            assert process.wait() == 0
