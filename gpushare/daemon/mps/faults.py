# SPDX-License-Identifier: Apache-2.0
"""Which client an MPS server's log names as the cause of a fault.

The manual has no format for it: "the log names the PID" (Multi-Process Service manual,
"Architecture"). A line that speaks of a fault and names a client by its PID is taken for it;
./dev gpu mps shows what a real log says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_FAULT: Final = re.compile(r"fault|fatal|exception", re.IGNORECASE)
_CLIENT: Final = re.compile(r"client[^0-9\n]{0,16}([0-9]+)", re.IGNORECASE)
_PARTITION: Final = re.compile(r"partition|contained", re.IGNORECASE)
_MOST_BYTES: Final = 1 << 20


class ServerLogs:
    """The logs of a control daemon's servers, read as they grow."""

    def __init__(self, folder: Path) -> None:
        """Read from the end of what is there now."""
        self._folder = folder
        self._offsets = {path: self._size(path) for path in self._paths()}

    def culprits(self) -> dict[int, bool]:
        """Return the PIDs that new lines name as the cause of a fault.

        The value is whether the fault stayed with the client's static partition: from r610 on, most
        do ("Using Static SM Partitioning").
        """
        found: dict[int, bool] = {}
        for path in self._paths():
            for line in self._new_text(path).splitlines():
                named = _CLIENT.search(line) if _FAULT.search(line) else None
                if named is not None:
                    found[int(named[1])] = bool(_PARTITION.search(line))
        return found

    def _paths(self) -> list[Path]:
        """Return server.log: of protocol 3, each server has one in a folder of its name."""
        return [*self._folder.glob("server.log"), *self._folder.glob("*/server.log")]

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0

    def _new_text(self, path: Path) -> str:
        """Return the whole lines since the last look, and less of them if there are too many."""
        offset = self._offsets.get(path, 0)
        size = self._size(path)
        offset = max(0 if size < offset else offset, size - _MOST_BYTES)
        try:
            with path.open("rb") as opened:
                opened.seek(offset)
                content = opened.read(_MOST_BYTES)
        except OSError:
            return ""
        end = content.rfind(b"\n") + 1
        self._offsets[path] = offset + end
        return content[:end].decode(errors="replace")
