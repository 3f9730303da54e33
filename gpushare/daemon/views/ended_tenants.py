# SPDX-License-Identifier: Apache-2.0
"""The last figures of tenants that were released, for the metrics history.

It samples every ten seconds. Without them it would not know what a tenant received since its last
sample, or that there was a tenant that was there for less. They are kept for a minute, and in
memory only: what ended before gpushared was restarted is not known afterwards.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.core.log import log
from gpushare.daemon.observe.compute_usage import GATE
from gpushare.daemon.pages.grant_page import Gate
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.metrics import tenant_metrics_of
from gpushare.metrics_schema import EndedTenantMetrics

KEPT_SECONDS: Final = 60.0
MOST_KEPT: Final = 512  # the earliest are dropped


class _EndedRow(NamedTuple):
    at: float  # monotonic seconds
    row: EndedTenantMetrics


def ended_metrics(state: DaemonState) -> Iterator[EndedTenantMetrics]:
    """Yield a row for each tenant that was released in the last minute, the earliest first."""
    oldest = time.monotonic() - KEPT_SECONDS
    yield from (kept.row for kept in state.tenants.ended.values() if kept.at >= oldest)


def keep_last_figures(key: str, state: DaemonState) -> None:
    """Keep the figures of tenant `key`, which is about to be released; the decide thread's.

    No error of it keeps a tenant from being released.
    """
    record, now = state.ledger.entries.get(key), time.monotonic()
    kept: dict[tuple[str, float], _EndedRow] = {
        life: ended for life, ended in state.tenants.ended.items() if ended.at >= now - KEPT_SECONDS
    }
    if record is None or record.state == "none" or state.driver is None:
        return
    life = key, record.created  # what is created again may have the same key
    if life in kept:
        return  # it is the second attempt to release it, and the first has closed its pages
    try:
        kept[life] = _EndedRow(now, _last_row(record, state))
    except Exception:  # noqa: BLE001 - see above
        log("metrics-history-failed", "error", tenant=key, traceback=traceback.format_exc())
        return
    for surplus in list(kept)[:-MOST_KEPT]:
        del kept[surplus]
    state.tenants.ended = MappingProxyType(kept)


def _last_row(record: TenantRecord, state: DaemonState) -> EndedTenantMetrics:
    pages = state.tenants.pages.get(record.key)
    row = tenant_metrics_of(record, pages, state)
    for number, part in enumerate(row["cards"]):
        if pages is not None:
            gpu_ns, waited_ns = _since_the_last_look(record, number, pages, state)
            part["gpu_seconds"] += gpu_ns / 1e9
            part["throttled_seconds"] += waited_ns / 1e9
    return EndedTenantMetrics(**row, ended=time.time())


def _since_the_last_look(
    record: TenantRecord, number: int, pages: Pages, state: DaemonState
) -> tuple[int, int]:
    """Return what a tenant received of a card, and how long it waited, since the last look.

    The compute meter looks a few times a second. Of a tenant that an earlier daemon placed it must
    have looked once: what that daemon has counted is not counted again.
    """
    known = state.observed.compute.get((record.key, record.allocations[number].uuid))
    if known is None and pages.adopted:
        return 0, 0

    def read(held: Pages) -> tuple[Gate, int] | None:
        if number >= held.grant.card_count:
            return None
        waits = held.status.waits(number).values()
        return held.grant.gate(number), sum(one.throttled_ns for one in waits)

    found = pages.look(read, None)
    if found is None:
        return 0, 0
    gate, waited_ns = found
    if known is None:
        return (0 if gate.mode == abi.GATE_OPEN else gate.charged_ns), waited_ns
    received_ns = gate.charged_ns - known.charged_ns if known.source == GATE else 0
    # The meter also has the waits of processes that have ended since.
    later_ns = 0 if pages.adopted else waited_ns - known.waited_ns
    return max(0, received_ns), max(0, later_ns)
