# SPDX-License-Identifier: Apache-2.0
"""The reply of the op `metrics`: figures of cards, tenants and the daemon, for gpushare-exporter.

One request is one moment, and costs the daemon less than the rows of `gpushare ps`: it looks for no
processes and queries no engine. Sizes are bytes, times seconds. Each counter names its start: the
tenant, or the daemon's start, at which it is 0 again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypedDict

from gpushare.protocol.rows import CardRow, EndedTenantRow, TenantRow

#: Upper bounds of the buckets of `OperationMetrics.buckets`, in seconds; the last bucket has none.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperationMetrics(TypedDict):
    """How long one operation took, from its packet to its answer; since gpushared started."""

    buckets: list[int]  # how many took at most BOUNDS[n] and more than the one before
    seconds: float  # all of them together
    failures: dict[str, int]  # by the code of the refusal


class NodeMetrics(TypedDict):
    """The daemon, and the machine."""

    version: str
    node_name: str  # of this machine in Kubernetes; empty: not known to gpushared
    started: float  # seconds since the epoch
    driver_version: str
    cuda_version: str
    driver_up: bool  # it is loaded, and its figures are not stale
    scheduler_up: bool
    operations: dict[str, OperationMetrics]
    events: dict[str, int]  # how often each event of COUNTED occurred
    evictions: dict[str, float]  # counts and seconds, by the fields of the ledger's EvictionTotals
    history_lost: int  # events that could not be kept; since gpushared started
    queue_waiting: int  # starts that wait for room
    queue_oldest_seconds: float  # how long the oldest of them has waited; 0: none waits


@dataclass(frozen=True)
class Metrics:
    """All figures at one time."""

    cards: list[CardRow]
    tenants: list[TenantRow]
    node: NodeMetrics
    ended: list[EndedTenantRow] = field(default_factory=list)
