# SPDX-License-Identifier: Apache-2.0
"""The scheduler's process, and the connection to it.

It outlives gpushared: a restart finds it at work and goes on telling it. So it is known as who
listens on its socket, and watched by a pidfd; only one that was started here is a child.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.daemon.compute import message as schedule_message
from gpushare.daemon.compute.message import Answer

_ANSWER_SECONDS: Final = 2.0  # it answers in microseconds: longer is a process that hangs
_START_SECONDS: Final = 5.0
_END_SECONDS: Final = 1.0
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)


class SchedulerLost(Exception):
    """It cannot be started, has ended, or does not answer; the text says which."""


@dataclass(frozen=True)
class Command:
    """How the scheduler is started; `slow` is what it multiplies its own durations by."""

    program: Path
    socket: Path
    slow: int = 1

    @property
    def argv(self) -> list[str]:
        """The command line."""
        return [str(self.program), "--socket", str(self.socket), "--slow", str(self.slow)]


class Scheduler:
    """A running scheduler that this process is connected to."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(_ANSWER_SECONDS)
        option = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(option)[0]
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            connected.close()
            raise SchedulerLost(f"process {self.pid}: {error.strerror}") from error

    @classmethod
    def connect(cls, path: Path) -> Scheduler:
        """Return the one that listens at `path`; SchedulerLost where none does."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connecting.settimeout(_ANSWER_SECONDS)
            connecting.connect(str(path))
        except OSError as error:
            connecting.close()
            raise SchedulerLost(f"{path}: {error.strerror or error}") from error
        return cls(connecting)

    @classmethod
    def start(cls, command: Command) -> Scheduler:
        """Start one, and return it once it listens; SchedulerLost where it does not."""
        said, says = os.pipe2(os.O_CLOEXEC)
        try:
            # Nothing of ours is handed on: neither the environment nor descriptors.
            pid = os.posix_spawn(
                command.program,
                command.argv,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, says, 1),
                ],
            )
            os.close(says)
            says = -1
            if not (select.select([said], [], [], _START_SECONDS)[0] and os.read(said, 256)):
                os.kill(pid, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                raise SchedulerLost(f"{command.program} did not start (exit status {status})")
        except OSError as error:
            raise SchedulerLost(f"{command.program}: {error.strerror}") from error
        finally:
            for fd in (said, says):
                if fd >= 0:
                    os.close(fd)
        return cls.connect(command.socket)

    def tell(self, message: bytes, descriptors: Sequence[int] = ()) -> Answer:
        """Send a message with descriptors, and return the answer; SchedulerLost without one."""
        rights = array.array("i", descriptors)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            self._socket.sendmsg([message], control)
            packet = self._socket.recv(schedule_message.ANSWER.size + 1)
            if not packet:
                raise SchedulerLost(f"process {self.pid} has hung up")
            return schedule_message.answer(packet)
        except TimeoutError as error:
            raise SchedulerLost(f"process {self.pid} does not answer") from error
        except (OSError, ValueError) as error:
            raise SchedulerLost(f"process {self.pid}: {error}") from error

    def runs(self, program: Path) -> bool:
        """Whether it is the program that is there now, not one that was installed before."""
        try:
            ours, its = program.stat(), Path(f"/proc/{self.pid}/exe").stat()
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (its.st_dev, its.st_ino)

    def end(self) -> None:
        """End it. Its gates stay as they are: nobody's is opened by that."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            if not select.select([self.pidfd], [], [], _END_SECONDS)[0]:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
                select.select([self.pidfd], [], [], _END_SECONDS)

    def close(self) -> None:
        """Let go of it: it goes on where it runs, and is waited for where it was a child."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        self._socket.close()
