# SPDX-License-Identifier: Apache-2.0
"""A daemon that speaks the protocol and answers as a test configured, with or without a socket."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare import client, protocol, wait_policy
from gpushare.errors import ErrorCode

Reply = dict[str, Any]


@dataclass
class AnsweringDaemon:
    """`answers` are an op's replies after the acknowledgement; `requests` what was asked.

    It holds the lock of a daemon that lives.
    """

    path: Path
    answers: dict[str, list[Reply]]
    acknowledge: bool = True
    requests: list[Reply] = field(default_factory=list)
    asked: Callable[[Reply], None] = lambda _request: None  # before it is answered

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self.path.with_name(wait_policy.LOCK).open("w") as lock:
            wait_policy.take_lock(lock.fileno())
            yield

    @contextmanager
    def answering(self) -> Iterator[AnsweringDaemon]:
        """Answer the clients of this process until the block ends, in the place of a socket."""
        with self._lock(), pytest.MonkeyPatch.context() as patch:
            self.path.touch()
            patch.setattr(client, "socket", Sockets(self))
            yield self
            self.path.unlink()

    @contextmanager
    def running(self) -> Iterator[AnsweringDaemon]:
        """Answer until the block ends."""
        with self._lock(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.path))
            listener.listen()
            thread = threading.Thread(target=self._serve, args=[listener])
            thread.start()
            try:
                yield self
            finally:
                listener.shutdown(socket.SHUT_RDWR)  # accept returns
                thread.join()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link, suppress(BrokenPipeError):  # a client that is closed asks no more
                request = protocol.decode(link.recv(protocol.MAX_REQUEST_BYTES))
                replies = self.answer(request)
                if not replies:
                    link.recv(1)  # until the client gives up
                for reply in replies:
                    link.send(protocol.encode(reply))

    def answer(self, request: Reply) -> list[Reply]:
        """Return the replies to a request; none is to have the client wait."""
        self.requests.append(request)
        self.asked(request)
        if not self.acknowledge:
            return []
        invalid = refusal(ErrorCode.USAGE, "op is not one of those of this version")
        try:
            return [{"ack": True}, *self.answers[request["op"]]]
        except KeyError:  # as a daemon of an earlier version
            return [{"ack": True}, *invalid]


@dataclass
class Sockets:
    """The module `socket`, whose sockets lead to a daemon of this process, or to none."""

    daemon: AnsweringDaemon | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *_: object) -> DaemonLink:
        return DaemonLink(self.daemon)


@dataclass
class DaemonLink:
    daemon: AnsweringDaemon | None
    replies: deque[Reply] = field(default_factory=deque)

    def __enter__(self) -> DaemonLink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        pass

    def connect(self, path: str) -> None:
        if self.daemon is None or path != str(self.daemon.path):
            raise FileNotFoundError(2, "No such file or directory", path)

    def send(self, packet: bytes) -> None:
        assert self.daemon is not None
        self.replies.extend(self.daemon.answer(protocol.decode(packet)))

    def recv(self, _most: int) -> bytes:
        return protocol.encode(self.replies.popleft()) if self.replies else b""


def rows(*found: object) -> list[Reply]:
    """Return the replies that stream `found`."""
    return [*({"row": row} for row in found), {"ok": True}]


def refusal(code: ErrorCode, error: str, **more: Any) -> list[Reply]:
    """Return the one reply that says no."""
    return [{"ok": False, "code": code.text, "error": error, **more}]
