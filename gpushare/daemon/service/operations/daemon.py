# SPDX-License-Identifier: Apache-2.0
"""Operations on the daemon itself: its status, its metrics, its history, its configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import gpushare
from gpushare import config, protocol
from gpushare.daemon.limits.driver_limits import best_isolation
from gpushare.daemon.operator.reload import reload_config
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    MalformedRequest,
    Operation,
    reply,
)
from gpushare.daemon.state import DaemonState, UnallocatedContainer
from gpushare.daemon.views import metrics
from gpushare.daemon.views.status_rows import card_index
from gpushare.protocol import DaemonStatus
from gpushare.quota import format_size

_MOST: Final = 1 << 53  # that JSON has a number for everywhere

_MOST_UNALLOCATED: Final = 16
_MOST_WARNINGS: Final = 48
_MOST_WARNING_LETTERS: Final = 1000


def _status(_request: ControlRequest, state: DaemonState) -> ControlReply:
    return reply({**status_row(state)})


def _metrics(_request: ControlRequest, state: DaemonState) -> ControlReply:
    tenants: Iterator[Mapping[str, Any]] = (
        {"tenant": row} for row in metrics.tenant_metrics(state)
    )
    cards: Iterator[Mapping[str, Any]] = ({"card": row} for row in metrics.card_metrics(state))
    return chain(cards, tenants), {"node": metrics.daemon_metrics(state)}


def _history(request: ControlRequest, state: DaemonState) -> ControlReply:
    name, since = request.fields.get("name", ""), request.fields.get("since", 0)
    if not isinstance(name, str) or len(name) > 256:
        raise MalformedRequest("name is not a string of at most 256 characters")
    if type(since) not in {int, float} or not 0 <= since <= _MOST:
        raise MalformedRequest("since is not a number of seconds since 1970")
    after = request.number("after", 0, _MOST)
    if state.history is None:
        return reply()
    found = state.history.page(name, since, after, protocol.HISTORY_ROWS)
    return (dict(event) for event in found), {}


def _reload(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    return reply({"changed": reload_config(state)})


DAEMON_OPERATIONS: Final[Mapping[str, Operation]] = {
    "status": Operation(_status),
    "metrics": Operation(_metrics),
    "history": Operation(_history),
    "reload": Operation(_reload, "decide"),
}


def _unhealthy(state: DaemonState) -> Iterator[str]:
    """Yield the fault of each unhealthy card, and the number of its tenants."""
    if state.driver is None:
        return
    for capacity in state.capacities():
        if capacity.health != "ok":
            tenants = len(capacity.allocations)
            kept = f" (tenants that keep their allocations: {tenants})" if tenants else ""
            card = f"card {capacity.card.index} ({capacity.card.model})"
            yield f"{card} is unhealthy: {capacity.health}{kept}"


def _unallocated_warning(found: UnallocatedContainer, state: DaemonState) -> str:
    return (
        f"process {found.pid} ({found.name}) in {found.container} has "
        f"{format_size(found.bytes)} of card {card_index(found.uuid, state)} and no allocation: it "
        "bypasses gpushare. Run it with the runtime gpushare, without --privileged"
    )


def status_row(state: DaemonState) -> DaemonStatus:
    """Return the daemon's own status."""
    driver = state.driver
    warnings = [*state.warnings, *state.ledger.notices]
    stores = state.overrides.notice, state.card_overrides.notice
    faults = state.ledger.fault, state.integrity.why, *stores
    warnings += [fault for fault in faults if fault]
    if driver is None:
        warnings.append(state.no_driver_reason)
    elif state.driver_fault:
        warnings.append(state.driver_fault)
    elif state.observed.usage.stale:
        warnings.append(f"the driver's figures are stale: {state.observed.usage.stale}")
    warnings += _unhealthy(state)
    warnings += [
        _unallocated_warning(one, state) for one in state.observed.unallocated[:_MOST_UNALLOCATED]
    ]
    if state.scheduler_fault:
        warnings.append(state.scheduler_fault)
    if state.history is not None and state.history.fault:
        warnings.append(f"events are not stored: {state.history.fault}")
    if state.config_fault:
        warnings.append(state.config_fault)
    elif config.outdated(state.config):
        warnings.append(
            f"{state.config.file or config.DEFAULT_FILE} was changed after gpushared read it; "
            "sudo gpushare config reload"
        )
    return DaemonStatus(
        version=gpushare.__version__,
        pid=os.getpid(),
        generation=state.ledger.generation,
        scheduler_pid=state.scheduler_pid,
        driver_version=driver.nvml.driver_version if driver else "",
        cuda_version=driver.nvml.cuda_version if driver else "",
        isolation=best_isolation(driver),
        cards=len(driver.cards) if driver else 0,
        tenants=sum(record.state != "none" for record in state.ledger.entries.values()),
        simulated=driver is not None and driver.is_simulated,
        time_scale=1.0 if driver is None else driver.time_scale,
        config="" if state.config.file is None else str(state.config.file),
        library_dir=str(state.libraries),
        run_dir=str(state.config.run_dir),
        node_name=metrics.node_name(state),
        kubernetes_mode=state.config.kubernetes_mode,
        warnings=[text[:_MOST_WARNING_LETTERS] for text in warnings[:_MOST_WARNINGS]],
    )
