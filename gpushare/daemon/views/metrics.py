# SPDX-License-Identifier: Apache-2.0
"""The rows of tenants for `metrics`, also of those that have just ended, and the daemon's figures.

This module changes no state.
"""

from __future__ import annotations

import operator
import os
import time
import traceback
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

import gpushare
from gpushare import protocol
from gpushare.daemon.core.log import event_count, log
from gpushare.daemon.node import Node
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.rows import RowLookups, tenant_row
from gpushare.events import COUNTED
from gpushare.metrics_schema import NodeMetrics
from gpushare.protocol.kubernetes import NODE_NAME
from gpushare.protocol.rows import EndedTenantRow


def daemon_metrics(state: DaemonState) -> NodeMetrics:
    """Return the figures of the daemon itself."""
    driver = state.node.driver
    starts = [start for start in state.queue.waiting if not start.container]
    return NodeMetrics(
        version=gpushare.__version__,
        node_name=node_name(state.node),
        started=state.started,
        driver_version="" if driver is None else driver.nvml.driver_version,
        cuda_version="" if driver is None else driver.nvml.loaded.cuda_version,
        driver_up=driver is not None and not state.observed.usage.stale,
        scheduler_up=state.node.scheduler_pid != 0,
        operations=state.durations.figures(),
        events={event: event_count(event) for event in sorted(COUNTED)},
        evictions=dict(vars(state.observed.evictions)),
        history_lost=0 if state.history is None else state.history.lost,
        queue_waiting=len(starts),
        queue_oldest_seconds=max((time.time() - start.since for start in starts), default=0.0),
    )


def node_name(node: Node) -> str:
    """Return the name of this machine in Kubernetes, "" if it is not known here."""
    return node.config.node_name or os.environ.get(NODE_NAME, "")


def tenant_packets(state: DaemonState) -> Iterator[bytes]:
    """Yield a packet for each tenant that has a part of a card, from its reservation on.

    A row is made again only if something that it is made of is another: many tenants are idle.
    """
    observed, lookups = state.observed, RowLookups(state.node, state.ledger)
    if state.node.driver is None:
        return
    # Each is replaced, never changed.
    published = (
        state.node.driver,
        observed.usage,
        observed.compute,
        observed.peaks,
        observed.findings,
        state.node.card_overrides.all(),
    )
    for record in state.ledger.entries.values():
        pages = state.tenants.pages.get(record.key)
        if record.state == "none":
            continue
        if pages is None:
            yield _packet(record, state, lookups)
            continue
        claims, sums, _ = pages.accounts()
        sources = (*published, record, claims, state.ledger.freezes.of(record.key))
        figures = (
            pages.denials.total,
            pages.denials.seen,
            observed.idle.get(record.key),
            observed.waiting.get(record.key),
            *(pages.grant.overhead_bytes(number) for number in range(len(sums))),
            *(pages.grant.limit_bytes(number) for number in range(len(sums))),
            *(lookups.share(record.key, allocation.uuid) for allocation in record.allocations),
        )
        known: _KnownPacket | None = pages.metrics
        if known is None or not known.is_of(sources, figures):
            known = pages.metrics = _KnownPacket(sources, figures, _packet(record, state, lookups))
        yield known.packet


def _packet(record: TenantRecord, state: DaemonState, lookups: RowLookups) -> bytes:
    return protocol.encode({"row": {"tenant": tenant_row(record, state, lookups)}})


class _KnownPacket(NamedTuple):
    """A packet, and what it was made of."""

    sources: tuple[object, ...]
    figures: tuple[object, ...]
    packet: bytes

    def is_of(self, sources: tuple[object, ...], figures: tuple[object, ...]) -> bool:
        return figures == self.figures and all(map(operator.is_, sources, self.sources))


# --- the last figures of tenants that were released, for the metrics history ---
#
# It samples every ten seconds. Without them it would not know what a tenant received since its last
# sample, or that there was a tenant that was there for less. They are those of the compute meter's
# last look, which is a part of a second ago. They are kept for a minute, and in memory only: what
# ended before gpushared was restarted is not known afterwards.

KEPT_SECONDS: Final = 60.0
MOST_KEPT: Final = 512  # the earliest are dropped


class _EndedRow(NamedTuple):
    at: float  # monotonic seconds
    row: EndedTenantRow


def ended_rows(tenants: Tenants) -> Iterator[EndedTenantRow]:
    """Yield a row for each tenant that was released in the last minute, the earliest first."""
    oldest = time.monotonic() - KEPT_SECONDS
    yield from (kept.row for kept in tenants.ended.values() if kept.at >= oldest)


def keep_last_figures(key: str, state: DaemonState) -> None:
    """Keep the figures of tenant `key`, which is about to be released; the decide thread's.

    No error of it keeps a tenant from being released.
    """
    record, now = state.ledger.entries.get(key), time.monotonic()
    kept: dict[tuple[str, float], _EndedRow] = {
        life: ended for life, ended in state.tenants.ended.items() if ended.at >= now - KEPT_SECONDS
    }
    if record is None or record.state == "none" or state.node.driver is None:
        return
    life = key, record.created  # a container that is created again may have the same key
    if life in kept:
        return  # it is the second attempt to release it, and the first has closed its pages
    try:
        row = tenant_row(record, state, RowLookups(state.node, state.ledger))
        kept[life] = _EndedRow(now, {**row, "ended": time.time()})
    except Exception:  # noqa: BLE001 - see above
        log("metrics-history-failed", "error", tenant=key, traceback=traceback.format_exc())
        return
    for surplus in list(kept)[:-MOST_KEPT]:
        del kept[surplus]
    state.tenants.ended = MappingProxyType(kept)
