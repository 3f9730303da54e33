# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon, at most once a second however many ask us."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.exporter.family import Snapshot

if TYPE_CHECKING:
    from gpushare.figures import TenantFigures

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
        return Snapshot(self._node, replace(metrics, tenants=distinct(metrics.tenants)))


def distinct(tenants: Sequence[TenantFigures]) -> list[TenantFigures]:
    """Return `tenants`, each with an id of its own, and names that can be written.

    Two low-level runtimes with folders of their own may both have a container "test".
    """
    count = Counter(tenant["id"] for tenant in tenants)
    return [_distinct(tenant, alone=count[tenant["id"]] == 1) for tenant in tenants]


def _distinct(tenant: TenantFigures, *, alone: bool) -> TenantFigures:
    identity = tenant["id"] if alone else f"{tenant['id']}@{tenant['key']}"
    # Bytes that are no UTF-8 become halves of letters, which no text can have.
    name = tenant["name"].encode("utf-8", "backslashreplace").decode()
    return {**tenant, "id": identity, "name": name}
