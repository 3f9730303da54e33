# SPDX-License-Identifier: Apache-2.0
"""Starts gpushared by a fork of a process that has imported it (tests/fork_server.py).

The imports take two thirds of a start's processor time, and the end-to-end tests start gpushared
hundreds of times. What is forked has arguments, an environment, a session and a log of its own, as
what is executed. That gpushared starts when it is executed is seen where systemd, a wrapper or
another version starts it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

#: Where `tests` was imported from, which need not be the checkout (tools/gpu/carried.sh).
_ROOT: Final = Path(__file__).absolute().parents[2]


class Forked:
    """A gpushared that the server has started; as much of subprocess.Popen as tests use."""

    def __init__(self, argv: Sequence[str], output: int, env: Mapping[str, str]) -> None:
        self.args = [*argv]
        self.returncode: int | None = None
        self._server = _server()
        self.pid = self._server.ask({"argv": self.args, "env": dict(env)}, output)
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to it, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._has_ended(timeout):
            self.returncode = self._server.ask({"reap": self.pid})
            os.close(self._pidfd)
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))


class _Server:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inside:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(inside.fileno())],
                cwd=_ROOT,
                pass_fds=[inside.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask(self, wanted: dict[str, Any], *files: int) -> int:
        """Return the server's answer, a number."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(wanted).encode()], files)
            return int(self._socket.recv(64))

    def end(self) -> None:
        """End it, now or again; what it has started goes on."""
        self._socket.close()
        self._process.wait()


@cache
def _server() -> _Server:
    made = _Server()
    atexit.register(made.end)
    return made


def end() -> None:
    """End the server: not every process that has one comes to its atexit handlers."""
    if _server.cache_info().currsize:
        _server().end()
