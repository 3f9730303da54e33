# SPDX-License-Identifier: Apache-2.0
"""A worker as gpushared holds it: a child process, its pidfd and the connection to it.

The NVML worker is one, and the worker of evictions (eviction/worker_main.py).

A process that hangs in an ioctl of the driver may not die of SIGKILL (state D). It is let go of and
waited for later; only so many of them are allowed, for each may hold the driver's locks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpushare.daemon.cards import worker_main
from gpushare.daemon.cards.driver_client import DriverError, DriverTimeout
from gpushare.daemon.cards.worker_main import CONNECTION
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import wait_readable

#: The folders come as arguments: -I and -S leave it none but the standard library's.
_PROGRAM: Final = (
    "import sys; sys.path += sys.argv[1:];"
    "from gpushare.daemon.{0} import worker_main; worker_main.main()"
)
_END_SECONDS: Final = 1.0
MOST_ABANDONED: Final = 3

# Of every driver that this process has loaded: one bound for all.
_abandoned: list[WorkerProcess] = []


class WorkerLost(DriverError):
    """The worker has ended, or speaks what is no answer."""


class WorkerProcess:
    """A running worker. One thread starts, asks and ends it, and lives as long as it does."""

    def __init__(self, argv: Sequence[str], name: str) -> None:
        """Start it; OSError. PR_SET_PDEATHSIG ends it with the thread that calls this."""
        self.name = name
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, its:
            self.pid = os.posix_spawn(
                argv[0],
                list(argv),
                {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, its.fileno(), CONNECTION),
                ],
            )
            self._pidfd = os.pidfd_open(self.pid)
            self._connection = ours.detach()
        self._sequence = 0

    def ask(self, call: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer; DriverTimeout where none comes in `seconds`, WorkerLost."""
        self._sequence += 1
        until = time.monotonic() + seconds
        try:
            worker_main.write_message(
                self._connection, {"number": self._sequence, "ask": call, "with": arguments}
            )
            message = worker_main.read_message(self._connection, lambda: self._wait(until))
        except worker_main.WorkerClosed as error:
            raise WorkerLost(f"the {self.name} has ended ({self._ending()})") from error
        except worker_main.InvalidMessage as error:
            raise WorkerLost(f"the {self.name} violated the protocol: {error}") from error
        answer = message.get("answer")
        if message.get("number") != self._sequence or not isinstance(answer, dict):
            raise WorkerLost(f"the {self.name} sent an unexpected response")
        return answer

    def end(self) -> None:
        """Kill it; where that cannot be done now, let go of it. Does not wait for long."""
        os.close(self._connection)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if not self.is_dead(_END_SECONDS):
            _abandoned.append(self)
            log("driver-worker-abandoned", "error", pid=self.pid, stuck=len(_abandoned))

    def _wait(self, until: float) -> None:
        if not wait_readable(self._connection, until - time.monotonic()):
            raise DriverTimeout("the NVIDIA driver is not responding")

    def _ending(self) -> str:
        """Return what it died of, as far as it is dead."""
        if not wait_readable(self._pidfd, _END_SECONDS):
            return "its connection only"
        ending = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        if ending is None or ending.si_code == os.CLD_EXITED:
            return f"exit status {ending.si_status if ending else 'unknown'}"
        return f"signal {signal.Signals(ending.si_status).name}"

    def is_dead(self, seconds: float) -> bool:
        """Whether it has ended; then nothing of it is left."""
        if not wait_readable(self._pidfd, seconds):
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        return True


def start_worker(argv: Sequence[str], name: str) -> WorkerProcess:
    """Start a worker; DriverError where it cannot be, or too many hang already."""
    _abandoned[:] = [child for child in _abandoned if not child.is_dead(0)]
    if len(_abandoned) >= MOST_ABANDONED:
        pids = ", ".join(str(child.pid) for child in _abandoned)
        raise DriverTimeout(
            f"{len(_abandoned)} processes hang in the NVIDIA driver and cannot be killed "
            f"(pid {pids}); reboot, or see dmesg"
        )
    try:
        return WorkerProcess(argv, name)
    except OSError as error:
        raise DriverError(f"{sys.executable}: {error.strerror}") from error


def worker_command() -> list[str]:
    """Return the NVML worker's command line: an interpreter with two folders and nothing else."""
    package = importlib.util.find_spec("pynvml")
    if package is None or package.origin is None:
        raise DriverError("pynvml is not installed; install nvidia-ml-py")
    return python_command("cards", Path(package.origin).parent)


def python_command(package: str, *folders: Path) -> list[str]:
    """Return the command line of the worker in gpushare.daemon.`package`: see `_PROGRAM`."""
    ours = Path(__file__).parents[3]
    named = dict.fromkeys(map(str, (ours, *folders)))
    return [sys.executable, "-I", "-S", "-c", _PROGRAM.format(package), *named]
