# SPDX-License-Identifier: Apache-2.0
"""The daemon's state: the node, the ledger, tenants, overrides, and what was observed.

It builds nothing and knows nothing of what works on it: `composition` hands each part what it
needs.
"""

from __future__ import annotations

import copy
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare.daemon.core.loop import DaemonClock, KeyLocks, Loop, T, Worker, WorkerPool
from gpushare.daemon.limits import CardAccounts, MemoryLimits
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
from gpushare.metrics_schema import BOUNDS, OperationMetrics
from gpushare.oci.image_view import PreparedImages

#: What launcher, hook and `gpushare run` ask.
TIMED: Final = ("create", "bind", "release", "open")


class Durations:
    """How long the operations take that a start waits for, since gpushared started.

    Any thread may note and ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics = {
            operation: OperationMetrics(buckets=[0] * (len(BOUNDS) + 1), seconds=0.0, failures={})
            for operation in TIMED
        }

    def note(self, op: str, seconds: float, failure: str | None = None) -> None:
        """Note that `op` was answered after `seconds`; `failure` is the code of a refusal."""
        metrics = self._metrics.get(op)
        if metrics is None:
            return
        with self._lock:
            metrics["buckets"][bisect_left(BOUNDS, seconds)] += 1
            metrics["seconds"] += seconds
            if failure is not None:
                metrics["failures"][failure] = metrics["failures"].get(failure, 0) + 1

    def figures(self) -> dict[str, OperationMetrics]:
        """Return what was noted."""
        with self._lock:
            return copy.deepcopy(self._metrics)


_SHORT_CREATES: Final = 4
_MOST_CREATES: Final = 64  # at once; one whose file system never answers keeps its thread
_MOST_REQUESTS: Final = 8


@dataclass
class Threads:
    """The workers, by what they do."""

    decide: Worker
    creates: WorkerPool  # creates containers: an image, or its file system, may never answer
    requests: WorkerPool  # runs requests that an engine may have to answer
    freezing: Worker  # freezes, thaws and kills; nothing else, so that nothing delays it
    names: Worker
    evict: Worker  # has the driver evict and restore

    @staticmethod
    def start() -> Threads:
        """Return workers with threads of their own."""
        return Threads(
            decide=Worker("decide"),
            creates=WorkerPool("create", _MOST_CREATES, _SHORT_CREATES),
            requests=WorkerPool("request", _MOST_REQUESTS),
            freezing=Worker("freeze"),
            names=Worker("names"),
            evict=Worker("evict"),
        )


@dataclass
class DaemonState(Threads):
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
    clock: DaemonClock = field(default_factory=DaemonClock)
    durations: Durations = field(default_factory=Durations)
    history: History | None = None
    metrics_history: MetricsHistory | None = None
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
