# SPDX-License-Identifier: Apache-2.0
"""gpushare-node: what the Kubernetes scheduler and the kubelet know about this node's shares.

One process beside gpushared. It asks the control socket as the command line does, and decides
nothing: gpushared reserves, and refuses what does not fit.

| module | content |
|---|---|
| cards | what gpushared reports of the cards, also while it restarts |
| kubelet | the kubelet's side: device plugin and DRA driver, over gRPC on Unix sockets |
| api | the API server's side: labels, ResourceSlices, claims and events |
| cluster | all nodes, as `kubectl gpushare` sees them |
"""

from __future__ import annotations

import sys
import threading
from typing import Final

#: The error if the library, an optional dependency, is missing.
NO_LIBRARY: Final = (
    f"grpcio is not installed. Run {sys.executable} -m pip install grpcio "
    "(the extra `kubernetes` of gpushare-runtime), or install Debian's python3-grpcio"
)


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
