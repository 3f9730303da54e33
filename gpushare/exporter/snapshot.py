# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon, at most once a second however many ask us."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.exporter.family import Snapshot

#: How long the daemon may take for an answer: Prometheus gives up after ten seconds by default.
ANSWER_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 1.0


class Source:
    """What the daemon behind `socket` says, under the name of this node. Any thread may ask."""

    def __init__(self, socket: Path, node: str) -> None:
        self.socket = socket
        self.why = ""  # the daemon did not answer the last time; empty: it did
        self._client = Client(socket, ANSWER_SECONDS, start_seconds=0)
        self._node = node
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None

    def snapshot(self) -> Snapshot:
        """Return what is there now, or was not a second ago."""
        with self._lock:  # whoever comes meanwhile has the same answer
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= FRESH_SECONDS:
                self._last = time.monotonic(), self._ask()
            return self._last[1]

    def _ask(self) -> Snapshot:
        try:
            metrics = self._client.metrics()
        except UserError as error:
            self.why = str(error)
            return Snapshot(self._node, None)
        self.why = ""
        return Snapshot(self._node, metrics)
