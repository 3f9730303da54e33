# SPDX-License-Identifier: Apache-2.0
"""Operations that evict, restore and move a tenant's GPU memory; each waits until it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.service.control_request import ControlReply, ControlRequest, Operation, reply
from gpushare.daemon.service.tenant_operations import find_tenant, request_reason
from gpushare.daemon.state import DaemonState
from gpushare.daemon.views import status_rows


class _EvictionOperations:
    """The operations that need the evictions, beside the state."""

    def __init__(self, evictions: Evictions) -> None:
        self._evictions = evictions

    def evict(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        held, reason = request.flag("hold"), request_reason(request)
        return self._run(request, state, lambda key: self._evictions.evict(key, reason, held=held))

    def restore(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        reason = request_reason(request)
        return self._run(request, state, lambda key: self._evictions.restore(key, reason))

    def move(self, request: ControlRequest, state: DaemonState) -> ControlReply:
        card, reason = request.text("card", 96), request_reason(request)
        return self._run(request, state, lambda key: self._evictions.move(key, card, reason))

    def _run(
        self, request: ControlRequest, state: DaemonState, step: Callable[[str], None]
    ) -> ControlReply:
        request.root_only()
        record = find_tenant(request.text("name"), state)
        step(record.key)
        now = state.ledger.entries.get(record.key, record)  # it may have ended meanwhile
        return reply({"tenant": status_rows.tenant_row(now, state)})


def eviction_operations(evictions: Evictions) -> Mapping[str, Operation]:
    """Return the operations on evictions, by name."""
    run = _EvictionOperations(evictions)
    return {
        "evict": Operation(run.evict, "create", is_slow=True),
        "restore": Operation(run.restore, "create", is_slow=True),
        "move": Operation(run.move, "create", is_slow=True),
    }
