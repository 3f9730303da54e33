# SPDX-License-Identifier: Apache-2.0
"""Pictures, one an interval, taken beside the terminal: a daemon that is slow stops no key."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gpushare.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.cli.top.picture import Picture


class Feed:
    """Calls `look` every `interval` seconds; `latest` is what came of it last.

    `fd` becomes readable with each picture, and when the daemon went away: `away` says why, empty
    where it answers. The picture before that stays.
    """

    def __init__(self, look: Callable[[], Picture], first: Picture, interval: float) -> None:
        self.latest = first
        self.away = ""
        self.interval = interval
        self._look = look
        self._now = threading.Event()
        self._ended = False
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._serve, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look_now(self) -> None:
        """Look at once, and every `interval` from there."""
        self._now.set()

    def taken(self) -> None:
        """Note that `latest` was seen: `fd` is not readable before the next."""
        while True:
            try:
                os.read(self.fd, 64)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Look no more. Who is in the middle of it is not waited for: the process ends."""
        self._ended = True
        self._now.set()

    def _serve(self) -> None:
        while True:
            self._now.wait(self.interval)
            self._now.clear()
            if self._ended:
                return
            try:
                self.latest = self._look()
                self.away = ""
            except (UserError, OSError) as error:
                self.away = str(error)
            self._told()

    def _told(self) -> None:
        try:
            os.write(self._write_fd, b".")
        except BlockingIOError:
            return  # a reader who is so late has it in the pipe already
