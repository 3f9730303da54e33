# SPDX-License-Identifier: Apache-2.0
"""A kill at any write, a full disk, a damaged file, a reader that never ends, and wrong clocks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpushare.history.reader import HistoryReader
from gpushare.history.store import HistoryStore
from tests.unit.history.test_store import T0, container, folder, metrics

__all__ = ["folder"]


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
