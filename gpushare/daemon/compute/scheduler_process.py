# SPDX-License-Identifier: Apache-2.0
"""The scheduler's process, the connection to it, and its messages.

The process outlives gpushared: a restarted daemon finds it running and uses it. The daemon
identifies it as the listener on its socket and watches it by a pidfd; it is a child only if this
daemon started it.

The messages are laid out as in scheduler/message.h; tests/c/scheduler/test_message_parity.py
compiles the header and compares. Numbers are little endian: gpushare runs where NVIDIA's driver
does, on x86-64 and arm64.
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

from gpushare.daemon.policy.compute import Share

VERSION: Final = 2

HELLO: Final = 1
TENANT: Final = 2
REMOVE: Final = 3
COMPLETE: Final = 4

MESSAGE: Final = struct.Struct("<II24sII")  # type, version, key, card_count, reserved
SHARE: Final = struct.Struct("<48sIIIIIi")  # as struct schedule_share
ANSWER: Final = struct.Struct("<IiiII")  # version, error, pid, tenants, time_scale


@dataclass(frozen=True)
class SchedulerReply:
    """The reply to each message; `error` is an errno, 0 for success."""

    version: int
    error: int
    pid: int
    tenants: int
    time_scale: int


def hello_message() -> bytes:
    """Return the first message of a connection: the tenants follow."""
    return MESSAGE.pack(HELLO, VERSION, b"", 0, 0)


def complete_message() -> bytes:
    """Return the message that all tenants have been named."""
    return MESSAGE.pack(COMPLETE, VERSION, b"", 0, 0)


def remove_message(key: str) -> bytes:
    """Return the message that removes tenant `key`."""
    return MESSAGE.pack(REMOVE, VERSION, key.encode(), 0, 0)


def tenant_message(key: str, shares: Sequence[tuple[str, Share]]) -> bytes:
    """Return the message that `key` has `shares`: a card's UUID and its part of it, each."""
    packed = [
        SHARE.pack(
            uuid.encode(),
            *(share.permille, share.capped, share.online, share.priority),
            *(share.measured, share.correction_permille),
        )
        for uuid, share in shares
    ]
    return MESSAGE.pack(TENANT, VERSION, key.encode(), len(shares), 0) + b"".join(packed)


def read_reply(packet: bytes) -> SchedulerReply:
    """Parse a reply; ValueError if it is not one."""
    if len(packet) != ANSWER.size:
        raise ValueError(f"an answer of {len(packet)} bytes, not {ANSWER.size}")
    return SchedulerReply(*ANSWER.unpack(packet))


_ANSWER_SECONDS: Final = 2.0  # it answers in microseconds: longer is a process that hangs
_START_SECONDS: Final = 5.0
_END_SECONDS: Final = 1.0
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)


class SchedulerLost(Exception):
    """It cannot be started, has ended, or does not answer; the text says which."""


@dataclass(frozen=True)
class SchedulerCommand:
    """How the scheduler is started; `time_scale` is what it multiplies its own durations by."""

    program: Path
    socket: Path
    time_scale: int = 1

    @property
    def argv(self) -> list[str]:
        """The command line."""
        return [
            str(self.program),
            "--socket",
            str(self.socket),
            "--time-scale",
            str(self.time_scale),
        ]


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
    def start(cls, command: SchedulerCommand) -> Scheduler:
        """Start one, and return it once it listens; SchedulerLost where it does not."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            # Nothing of ours is handed on: neither the environment nor descriptors.
            pid = os.posix_spawn(
                command.program,
                command.argv,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                ],
            )
            os.close(write_end)
            write_end = -1
            if not (
                select.select([read_end], [], [], _START_SECONDS)[0] and os.read(read_end, 256)
            ):
                os.kill(pid, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                raise SchedulerLost(f"{command.program} did not start (exit status {status})")
        except OSError as error:
            raise SchedulerLost(f"{command.program}: {error.strerror}") from error
        finally:
            for fd in (read_end, write_end):
                if fd >= 0:
                    os.close(fd)
        return cls.connect(command.socket)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> SchedulerReply:
        """Send a message with descriptors and return the reply; SchedulerLost without one."""
        rights = array.array("i", descriptors)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            self._socket.sendmsg([message], control)
            packet = self._socket.recv(ANSWER.size + 1)
            if not packet:
                raise SchedulerLost(f"process {self.pid} closed the connection")
            return read_reply(packet)
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
        """Stop the scheduler. Its gates stay as they are: this opens none of them."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            if not select.select([self.pidfd], [], [], _END_SECONDS)[0]:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
                select.select([self.pidfd], [], [], _END_SECONDS)

    def close(self) -> None:
        """Close our descriptors. The process keeps running, and is waited for if it was a child."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        self._socket.close()
