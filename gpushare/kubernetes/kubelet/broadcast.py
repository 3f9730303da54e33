# SPDX-License-Identifier: Apache-2.0
"""The last message of a stream, for every client that reads the stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushare.kubernetes.kubelet.grpc_service import Call
    from gpushare.kubernetes.kubelet.protobuf import Values


class Broadcast:
    """Sends each client the message that is current when it connects, and each later one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()  # guards what follows
        self._message: Values = {}
        self._version = 0  # 0: there is no message yet
        self._clients = 0
        self._quiet_since = 0.0
        self._closed = False

    def send(self, message: Values) -> None:
        """Send a message, unless it is the current one."""
        with self._changed:
            if message != self._message or not self._version:
                self._message = message
                self._version += 1
                self._changed.notify_all()

    @property
    def has_message(self) -> bool:
        """Whether there is anything to send."""
        return self._version > 0

    def quiet_seconds(self, since: float) -> float:
        """Return for how long no client has been connected; at most the time since `since`."""
        with self._changed:
            if self._clients:
                return 0.0
            return self._clock() - max(since, self._quiet_since)

    def stream(self, call: Call) -> Iterator[Values]:
        """Yield the messages until `close`, or until the client ends the call."""
        call.at_end(self._wake)
        with self._changed:
            self._clients += 1
        sent = 0
        try:
            while True:
                with self._changed:
                    while self._version == sent and call.is_active and not self._closed:
                        self._changed.wait()
                    if self._closed or not call.is_active:
                        return
                    sent, message = self._version, self._message
                yield message
        finally:
            with self._changed:
                self._clients -= 1
                self._quiet_since = self._clock()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
