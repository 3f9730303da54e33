# SPDX-License-Identifier: Apache-2.0
"""A control socket that answers from a script, and keeps what it was asked."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from gpushare import protocol, wait_policy
from gpushare.host.init_system import has_systemd

STARTING: Final = b'{"starting": true}'
ACK: Final = b'{"ack": true}'
DONE: Final = b'{"ok": true, "given": "shared", "key": "0011223344556677"}'
#: What the C programs advise when nothing answers.
START: Final = "systemctl start gpushared" if has_systemd() else "Start gpushared as root"


Packet = bytes | Callable[[], None]


def refusal(error: str, code: str = "refused") -> bytes:
    return json.dumps({"ok": False, "code": code, "error": error}).encode()


class ReceivedRequest(NamedTuple):
    request: dict[str, Any]
    fds: list[str]  # what the descriptors that came along were open on
    flags: list[int]  # and their file status flags


@final
class ScriptedDaemon:
    """Answers each connection with `packets`, then hangs up, or with `silent` keeps still.

    The first one it answers with `first`, where that is given. What is no packet is called instead.
    `act` is called with each request before it is answered. It holds the lock beside its socket, as
    a running daemon does, unless it is not `alive`.
    """

    def __init__(
        self,
        path: Path,
        packets: Sequence[Packet],
        *,
        silent: bool = False,
        alive: bool = True,
        first: Sequence[Packet] | None = None,
        act: Callable[[ReceivedRequest], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self._packets = packets
        self._first = first
        self._silent = silent
        self._act = act
        self._kept: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._lock = os.open(
            path.with_name(wait_policy.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        )
        if alive:
            wait_policy.take_lock(self._lock)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> ScriptedDaemon:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # This wakes the thread that waits in accept(2), with EINVAL.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for kept in (*self._kept, self._listener):
            kept.close()
        os.close(self._lock)

    def take_lock(self) -> None:
        """Come to life."""
        wait_policy.take_lock(self._lock)

    def serve_others_first(self) -> None:
        """Set the socket's time, as gpushared does, for longer than a client waits in silence."""
        self._act = self._serve_others

    def _serve_others(self, _: ReceivedRequest) -> None:
        until = time.monotonic() + 2 * protocol.ACK_SECONDS
        while time.monotonic() < until:
            os.utime(self.path)
            time.sleep(wait_policy.LOOK_SECONDS / 2)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._kept.append(connection)
            self._answer(connection)
            if not self._silent:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        size = array.array("i").itemsize
        text, control, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(8 * size))
        if json.loads(text) == {"op": "hello"} and (self._packets or not self._silent):
            connection.send(b'{"ok": true}')
            text, control, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(8 * size))
        fds = array.array("i")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % size])
        paths = [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in fds]
        flags = [_flags(fd) for fd in fds]
        for fd in fds:
            os.close(fd)
        self.asked.append(ReceivedRequest(json.loads(text), paths, flags))
        self._act(self.asked[-1])
        with contextlib.suppress(BrokenPipeError):
            again = self._first is None or len(self.asked) > 1
            for packet in self._packets if again else self._first or ():
                if isinstance(packet, bytes):
                    connection.send(packet)
                else:
                    packet()


def _flags(fd: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["flags"].strip(), 8)
