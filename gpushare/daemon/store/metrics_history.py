# SPDX-License-Identifier: Apache-2.0
"""Keeps the process that writes the metrics history (gpushare/history) running.

Nothing waits for it: it asks the control socket as any client does. The loop's thread alone uses
this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Backoff, wait_readable
from gpushare.history import FOLDER

#: The folder comes as an argument: -I and -S leave it none but the standard library's.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv.pop(1));"
    "from gpushare.history import __main__ as program; program.main(sys.argv[1:])"
)
_SOURCES: Final = str(Path(__file__).parents[3])  # the folder that has gpushare
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 60.0
_STEADY_SECONDS: Final = 60.0
_MOST_BYTES: Final = 4096


class MetricsHistory:
    """The process with `arguments`; None: there is to be none. `fault` says what is wrong."""

    def __init__(self, arguments: Sequence[str] | None) -> None:
        self.fault = ""
        self._arguments = arguments
        self._child: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, _STEADY_SECONDS)
        self._not_before = 0.0

    @property
    def pid(self) -> int:
        """The process, 0: there is none."""
        return 0 if self._child is None else self._child.pid

    def check(self) -> None:
        """Take what the process says, and have one run as it is to."""
        if self._child is not None:
            self._look(self._child)
        elif self._arguments is not None and time.monotonic() >= self._not_before:
            self._start(self._arguments)

    def close(self) -> None:
        """Have the process end, without waiting for it, and start none."""
        self._arguments = None
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def _start(self, arguments: Sequence[str]) -> None:
        self._backoff.note_start()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _SOURCES, *arguments],
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as error:
            self._failed(f"{sys.executable}: {error.strerror}")

    def _look(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        if wait_readable(child.stdout.fileno()):
            said = os.read(child.stdout.fileno(), _MOST_BYTES).decode(errors="replace")
            self._tell((said.splitlines() or [self.fault])[-1])
        status = child.poll()
        if status is None:
            return
        self._child = None
        child.stdin.close()
        child.stdout.close()
        name = f"signal {signal.Signals(-status).name}" if status < 0 else ""
        self._failed(f"its process has ended ({name or f'exit status {status}'})")

    def _failed(self, fault: str) -> None:
        """Start another one: soon, and later each time where it ends again soon."""
        self._tell(fault)
        self._not_before = time.monotonic() + self._backoff.wait_seconds()

    def _tell(self, fault: str) -> None:
        if fault and fault != self.fault:
            log("metrics-history-failed", "warning", reason=fault)
        self.fault = fault


def process_arguments(config: Config, gid: int | None) -> list[str] | None:
    """Return the arguments of the process, None where no figures are to be kept."""
    if not config.metrics_days:
        return None
    most = "" if config.metrics_bytes is None else str(config.metrics_bytes)
    group = "" if gid is None else str(gid)
    folder = config.state_dir / FOLDER
    return [str(config.socket), str(folder), str(config.metrics_days), most, group]
