# SPDX-License-Identifier: Apache-2.0
"""Keeps the process that writes the metrics history (gpushare/history) running.

Nothing waits for it: it asks the control socket as any client does. The loop's thread alone uses
this.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Backoff, Loop
from gpushare.history import FOLDER

#: The folder comes as an argument: -I and -S leave it none but the standard library's.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv.pop(1));"
    "from gpushare.history import __main__ as program; program.main(sys.argv[1:])"
)
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 60.0
_STEADY_SECONDS: Final = 60.0
_MOST_BYTES: Final = 4096


class MetricsHistory:
    """The process, as `arguments` has it; None: there is to be none. `fault` says what is wrong."""

    def __init__(self, loop: Loop, arguments: Callable[[], Sequence[str] | None]) -> None:
        self.fault = ""
        self.pid = 0
        self._loop, self._arguments = loop, arguments
        self._running: Sequence[str] | None = None  # its arguments
        self._input = self._output = self._pidfd = -1
        self._backoff = Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, _STEADY_SECONDS)
        self._waits = False
        self._closed = False

    def check(self) -> None:
        """Start the process where it is to run; end one with other arguments."""
        if self._closed or self._waits:
            return
        wanted = self._arguments()
        if self.pid and wanted != self._running:
            self._end_input()  # and go on when it has ended
        elif not self.pid and wanted is not None:
            self._start(wanted)
        elif not self.pid:
            self.fault = ""

    def close(self) -> None:
        """Have the process end, without waiting for it."""
        self._closed = True
        self._end_input()

    def _start(self, arguments: Sequence[str]) -> None:
        self._backoff.note_start()
        ends: list[int] = []
        try:
            ends += os.pipe2(os.O_CLOEXEC)
            ends += os.pipe2(os.O_CLOEXEC)
            its_input, self._input, self._output, its_output = ends
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _sources(), *arguments],
                {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, its_input, 0),
                    (os.POSIX_SPAWN_DUP2, its_output, 1),
                ],
                setsigmask=(),
                setsigdef=(signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM),
            )
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            for end in ends:
                os.close(end)
            self._input = self._output = -1
            self._later(f"{sys.executable}: {error.strerror}")
            return
        os.close(its_input)
        os.close(its_output)
        self._running = arguments
        self._loop.read(self._output, self._heard)
        self._loop.read(self._pidfd, self._ended)

    def _heard(self) -> None:
        """Take what the process says."""
        text = os.read(self._output, _MOST_BYTES).decode(errors="replace")
        if text:
            self._tell(text.splitlines()[-1])
        else:
            self._loop.forget(self._output)

    def _ended(self) -> None:
        asked = self._input < 0
        self._end_input()
        for descriptor in (self._pidfd, self._output):
            self._loop.forget(descriptor)
            os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid, self._running = 0, None
        if self._closed:
            return
        if asked:
            self.check()
            return
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self._later(f"its process has ended ({how})")

    def _later(self, fault: str) -> None:
        """Start another one: soon, and later each time where it ends again soon."""
        self._tell(fault)
        self._waits = True
        self._loop.later(self._backoff.wait_seconds(), self._again)

    def _again(self) -> None:
        self._waits = False
        self.check()

    def _tell(self, fault: str) -> None:
        if fault and fault != self.fault:
            log("metrics-history-failed", "warning", reason=fault)
        self.fault = fault

    def _end_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1


def process_arguments(config: Config, gid: int | None) -> list[str] | None:
    """Return the arguments of the process, None where no figures are to be kept."""
    if not config.metrics_days:
        return None
    most = "" if config.metrics_bytes is None else str(config.metrics_bytes)
    group = "" if gid is None else str(gid)
    folder = config.state_dir / FOLDER
    return [str(config.socket), str(folder), str(config.metrics_days), most, group]


def _sources() -> str:
    """Return the folder that has gpushare."""
    return str(Path(__file__).parents[3])
