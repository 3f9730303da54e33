# SPDX-License-Identifier: Apache-2.0
"""What systemd's watchdog is fed with: that what is promised and what is watched both go on.

A main loop that turns says nothing of the threads that do the work: one that hangs in a call of the
kernel, or waits for a lock for ever, would leave a daemon that answers and holds no quota. So the
watchdog is fed only while each of them has been seen to move within the time that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from gpushare.daemon.log import log

#: Checks in the time after which systemd acts, and of them may pass without a sign of life.
_CHECKS: Final = 4
_SILENT: Final = 2


class Pulse:
    """`beat` is called by the `threads`, `feed` every `period` seconds by the main thread."""

    def __init__(
        self, threads: Iterable[str], limit: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.period = limit / _CHECKS
        self._patience = limit * _SILENT / _CHECKS
        self._clock = clock
        self._beats = dict.fromkeys(threads, clock())
        self._stuck: list[str] = []

    def beat(self, thread: str) -> None:
        """Note that `thread` moves."""
        self._beats[thread] = self._clock()

    def feed(self, notify: Callable[[str], None]) -> None:
        """Feed the watchdog where every thread moves, and say which does not."""
        now = self._clock()
        stuck = [name for name, seen in self._beats.items() if now - seen > self._patience]
        if stuck and stuck != self._stuck:
            log("threads-stuck", "error", threads=stuck)
        elif self._stuck and not stuck:
            log("threads-move")
        self._stuck = stuck
        if not stuck:
            notify("WATCHDOG=1")
