# SPDX-License-Identifier: Apache-2.0
"""Queries the daemon at most once a second, independent of the number of clients."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.exporter.metric_family import Snapshot

if TYPE_CHECKING:
    from gpushare.metrics_schema import TenantMetrics

#: Timeout of the daemon's response: Prometheus gives up after ten seconds by default.
ANSWER_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 1.0


def default_node() -> str:
    """Return the Kubernetes node's name, if a pod's manifest passes it, or this host's name."""
    return os.environ.get("NODE_NAME") or os.uname().nodename


class SnapshotSource:
    """The metrics of the daemon on `socket`, with the name of this node. Thread-safe."""

    def __init__(self, socket: Path, node: str) -> None:
        self.socket = socket
        self.error = ""  # of the last query, empty if it succeeded
        self._client = Client(socket, ANSWER_SECONDS, start_seconds=0)
        self._node = node
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None

    def snapshot(self) -> Snapshot:
        """Return the current metrics, at most a second old."""
        with self._lock:  # clients that wait for the lock get the same snapshot
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= FRESH_SECONDS:
                self._last = time.monotonic(), self._ask()
            return self._last[1]

    def _ask(self) -> Snapshot:
        try:
            metrics = self._client.metrics()
        except UserError as error:
            self.error = str(error)
            return Snapshot(self._node, None)
        self.error = ""
        return Snapshot(self._node, replace(metrics, tenants=with_unique_ids(metrics.tenants)))


def with_unique_ids(tenants: Sequence[TenantMetrics]) -> list[TenantMetrics]:
    """Return `tenants` with unique IDs and valid UTF-8 names.

    Two low-level runtimes with separate state folders may both have a container "test".
    """
    count = Counter(tenant["id"] for tenant in tenants)
    return [_distinct(tenant, alone=count[tenant["id"]] == 1) for tenant in tenants]


def _distinct(tenant: TenantMetrics, *, alone: bool) -> TenantMetrics:
    identity = tenant["id"] if alone else f"{tenant['id']}@{tenant['key']}"
    # Invalid UTF-8 has become lone surrogates, which cannot be encoded.
    name = tenant["name"].encode("utf-8", "backslashreplace").decode()
    return {**tenant, "id": identity, "name": name}
