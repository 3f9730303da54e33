# SPDX-License-Identifier: Apache-2.0
"""The log of gpushare-node: lines on stderr, for the journal."""

from __future__ import annotations

import sys
import threading


class StatusLog:
    """Writes the state of each subject once, when it changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, str] = {}

    def note(self, subject: str, text: str) -> None:
        """Write `text`, unless it is what the last line about `subject` said."""
        with self._lock:
            if self._last.get(subject) == text:
                return
            self._last[subject] = text
            sys.stderr.write(f"gpushare-node: {text}\n")
            sys.stderr.flush()
