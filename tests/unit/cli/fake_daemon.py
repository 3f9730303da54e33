# SPDX-License-Identifier: Apache-2.0
"""A daemon that speaks the protocol on a real socket and answers as a test configured."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpushare import protocol, wait_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
    def running(self) -> Iterator[AnsweringDaemon]:
        """Answer until the block ends."""
        lock = self.path.with_name(wait_policy.LOCK).open("w")
        with lock, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            wait_policy.take_lock(lock.fileno())
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
                self.requests.append(request)
                self.asked(request)
                if not self.acknowledge:
                    link.recv(1)  # until the client gives up
                    continue
                link.send(protocol.encode({"ack": True}))
                unknown = refusal(protocol.CODE_INVALID, "op is not one of those of this version")
                for reply in self.answers.get(request["op"], unknown):
                    link.send(protocol.encode(reply))


def rows(*found: object) -> list[Reply]:
    """Return the replies that stream `found`."""
    return [*({"row": row} for row in found), {"ok": True}]


def refusal(code: str, error: str, **more: Any) -> list[Reply]:
    """Return the one reply that says no."""
    return [{"ok": False, "code": code, "error": error, **more}]
