# SPDX-License-Identifier: Apache-2.0
"""The main thread's loop: descriptors, timers, and calls that other threads ask for.

A callback that fails is logged and the loop goes on: the tenants of all others depend on it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from gpushare.daemon.log import log

Call = Callable[[], Any]


class Loop:
    """Runs callbacks until `stop`. Only `call`, `soon` and `stop` may be used by other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = itertools.count()
        self._calls: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopped = False
        self._signals, self._signalled = socket.socketpair()
        for end in (self._signals, self._signalled):
            end.setblocking(False)
        self.read(self._wake, self._drain)
        self.read(self._signals.fileno(), lambda: self._signals.recv(64))

    @property
    def signal_fd(self) -> int:
        """For signal.set_wakeup_fd: a signal wakes the loop, and its handler runs."""
        return self._signalled.fileno()

    def call(self, function: Call) -> None:
        """Run `function` on the loop's thread, soon; in the order of asking."""
        self._calls.append(function)
        os.eventfd_write(self._wake, 1)

    def soon(self, function: Call) -> None:
        """As `call`, with the next thing that wakes the loop: for what goes before an answer."""
        self._calls.append(function)

    def later(self, seconds: float, function: Call) -> None:
        """Run `function` after `seconds`."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), function))

    def every(self, seconds: float | Callable[[], float], function: Call) -> None:
        """Run `function` every `seconds`, the first time after as long; asked anew each time."""

        def wait() -> float:
            return seconds() if callable(seconds) else seconds

        def again() -> None:
            self.later(wait(), again)
            function()

        self.later(wait(), again)

    def read(self, fd: int, function: Call) -> None:
        """Run `function` whenever `fd` can be read."""
        self._selector.register(fd, selectors.EVENT_READ, {selectors.EVENT_READ: function})

    def write(self, fd: int, function: Call | None) -> None:
        """Run `function` whenever `fd`, which is read already, can be written; None: no more."""
        callbacks = dict(self._selector.get_key(fd).data)
        if function is None:
            callbacks.pop(selectors.EVENT_WRITE, None)
        else:
            callbacks[selectors.EVENT_WRITE] = function
        self._selector.modify(fd, sum(callbacks), callbacks)

    def forget(self, fd: int) -> None:
        """Watch `fd` no more. One that is not watched is fine."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def watches(self, fd: int) -> bool:
        """Whether `fd` is watched."""
        return fd in self._selector.get_map()

    def run(self) -> None:
        """Run callbacks until `stop`."""
        while not self._stopped:
            for key, events in self._selector.select(self._patience()):
                for event, function in list(key.data.items()):
                    # An earlier callback of this round may have closed it, and given its number
                    # to another.
                    if events & event and self._is_current(key.fd, event, function):
                        _run(function)
            self._run_due()

    def settle(self) -> None:
        """Run what was asked for by `call` so far; after `run`."""
        for _ in range(len(self._calls)):
            _run(self._calls.popleft())

    def stop(self) -> None:
        """End `run` after the callbacks of this round."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close what the loop itself has open; after `run`."""
        self._selector.close()
        os.close(self._wake)
        self._signals.close()
        self._signalled.close()

    def _patience(self) -> float | None:
        if self._calls:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _run(heapq.heappop(self._timers)[2])
        self.settle()

    def _is_current(self, fd: int, event: int, function: Call) -> bool:
        key = self._selector.get_map().get(fd)
        return key is not None and key.data.get(event) is function

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return


def _run(function: Call) -> None:
    try:
        function()
    except Exception:  # noqa: BLE001 - a fault with one tenant is not the others'
        log("callback-failed", "error", traceback=traceback.format_exc())
