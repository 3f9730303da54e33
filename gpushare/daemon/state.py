# SPDX-License-Identifier: Apache-2.0
"""The daemon's state: the node, the ledger, tenants, overrides, and what was observed.

It builds nothing and knows nothing of what works on it: `composition` hands each part what it
needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare.daemon.accounts import CardAccounts
from gpushare.daemon.core.durations import Durations
from gpushare.daemon.core.loop import DaemonClock, KeyLocks, Loop, T, Worker, WorkerPool
from gpushare.daemon.limits import MemoryLimits
from gpushare.daemon.node import Node
from gpushare.daemon.observed import Observations
from gpushare.daemon.pages.driver_params import DriverParams
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import ProcessWatch
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.waiting import QueueState
from gpushare.daemon.store.history import History
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.metrics_history import MetricsHistory
from gpushare.oci.image_view import PreparedImages


@dataclass
class DaemonState:
    """Everything the daemon has."""

    node: Node
    ledger: Ledger
    observed: Observations
    accounts: CardAccounts
    limits: MemoryLimits
    mounts: TenantMounts
    params: DriverParams
    tenants: Tenants
    loop: Loop
    watch: ProcessWatch
    decide: Worker
    creates: WorkerPool  # creates containers: an image, or its file system, may never answer
    requests: WorkerPool  # runs requests that an engine may have to answer
    freezing: Worker  # freezes, thaws and kills; nothing else, so that nothing delays it
    names: Worker
    clock: DaemonClock = field(default_factory=DaemonClock)
    durations: Durations = field(default_factory=Durations)
    history: History | None = None
    metrics_history: MetricsHistory | None = None
    sweeping: threading.Lock = field(default_factory=threading.Lock)  # of refused containers
    prepared_images: PreparedImages = field(default_factory=PreparedImages)
    creating: KeyLocks = field(default_factory=KeyLocks)  # by a tenant's key
    started: float = field(default_factory=time.time)  # seconds since the epoch
    queue: QueueState = field(default_factory=QueueState)

    def in_start(self, step: Callable[[], T]) -> T:
        """Return what `step` of a start returns, on the decide thread.

        Whatever follows the ledger is told after the answer.
        """

        def run() -> T:
            with self.ledger.changed.deferred(self.loop.soon):
                return step()

        return self.decide.run(run)

    @property
    def is_awaited(self) -> bool:
        """Whether a ticket waits, or was granted, or an evicted container waits for its restore."""
        return bool(self.ledger.tickets or self.observed.waiting)
