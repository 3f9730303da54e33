# SPDX-License-Identifier: Apache-2.0
"""gpushare-node: what the Kubernetes scheduler and the kubelet know about this node's shares.

One process beside gpushared. It asks the control socket as the command line does, and decides
nothing: gpushared reserves, and refuses what does not fit.

| module | content |
|---|---|
| cards | what gpushared reports of the cards, also while it restarts |
| kubelet | the kubelet's side: device plugin and DRA driver, over gRPC on Unix sockets |
| api | the API server's side: labels, ResourceSlices, claims and events |
| templates | `--templates`: the ResourceClaimTemplates that pods of the cluster wait for |
| cluster | all nodes, as `kubectl gpushare` sees them |
"""

from __future__ import annotations

import importlib.util
import sys
import threading

from gpushare.errors import UserError


def check_libraries() -> None:
    """Raise UserError if an optional dependency is missing; none is imported."""
    try:
        has_all = all(map(importlib.util.find_spec, ("grpc", "google.protobuf.message_factory")))
    except ModuleNotFoundError:  # of a package above
        has_all = False
    if not has_all:
        raise UserError(
            "grpcio or protobuf is not installed. "
            f"Run {sys.executable} -m pip install grpcio protobuf "
            "(the extra `kubernetes` of gpushare-runtime)"
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
