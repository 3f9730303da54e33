# SPDX-License-Identifier: Apache-2.0
"""The status of the daemon, with a warning for each fault of the node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import gpushare
from gpushare import config
from gpushare.daemon.eviction.preconditions import eviction_fault
from gpushare.daemon.limits import best_isolation
from gpushare.daemon.node import MpsCardState, Node
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.views.metrics import node_name
from gpushare.daemon.views.rows import card_index
from gpushare.protocol import DaemonStatus
from gpushare.quota.size import format_size
from gpushare.settings import MPS

_MOST_UNALLOCATED: Final = 16
_MOST_WARNINGS: Final = 48
_MOST_WARNING_LETTERS: Final = 1000


def _unhealthy(state: DaemonState) -> Iterator[str]:
    """Yield the fault of each unhealthy card, and the number of its tenants."""
    if state.node.driver is None:
        return
    for capacity in state.accounts.capacities():
        if capacity.health != "ok":
            tenants = len(capacity.allocations)
            kept = f" (tenants that keep their allocations: {tenants})" if tenants else ""
            card = f"card {capacity.card.index} ({capacity.card.model})"
            yield f"{card} is unhealthy: {capacity.health}{kept}"
        elif capacity.backend == MPS:
            yield from _mps_faults(capacity, state.node, state.ledger)
        elif capacity.compute_mode:
            yield (
                f"card {capacity.card.index} is in compute mode {capacity.compute_mode}: one "
                "process at a time can use it, so no container gets a share. An MPS control daemon "
                f"may have set it; nvidia-smi -i {capacity.card.index} -c DEFAULT resets it"
            )


def _mps_faults(capacity: CardCapacity, node: Node, ledger: Ledger) -> Iterator[str]:
    """Yield why a card in MPS mode takes no containers, or no processes."""
    card = f"card {capacity.card.index}"
    if capacity.backend_fault:
        yield f"{card} is in MPS mode, and {capacity.backend_fault}"
    server = node.mps.cards.get(capacity.card.uuid, MpsCardState())
    if server.server_state == "FAULT":
        records = ledger.entries
        names = [records[key].title for key in sorted(server.losses) if key in records]
        held = f": {', '.join(names)}" if names else ""
        yield (
            f"the MPS server of {card} had a fatal fault, and takes no processes until the "
            f"containers of that moment have ended{held}. Restart them"
        )


def _claims_without_containers(node: Node, ledger: Ledger) -> Iterator[str]:
    """Yield each claim whose memory is reserved, and which no container uses."""
    used, mode = {record.claim for record in ledger.entries.values()}, node.config.kubernetes_mode
    idle = [claim for claim in ledger.claims.values() if claim.uid not in used]
    for claim in idle[:_MOST_UNALLOCATED]:
        parts = [claim.part(card) for card in claim.cards]
        held = ", ".join(
            f"{format_size(part.quota_bytes)} and {part.cores} % of card "
            f"{card_index(part.uuid, node)}"
            for part in parts
        )
        fix = "a container of its pod is starting, or the kubelet has not released it"
        if mode != "dra":
            fix = (
                f"kubernetes.mode is {mode}, and was dra. Delete its pod: gpushare-node releases it"
            )
        yield f"{claim.title} has {held} and no container: {fix}"


def _warnings(state: DaemonState) -> Iterator[str]:
    """Yield a sentence for each fault of the node, the empty text for one that there is not."""
    node, ledger, stale = state.node, state.ledger, state.observed.usage.stale
    yield from (*ledger.notices, ledger.fault, ledger.integrity.why)
    if node.driver is None:
        yield node.no_driver_reason
    else:
        yield node.driver_fault or (f"the driver's figures are stale: {stale}" if stale else "")
        yield from node.driver.nvml.loaded.lost
    yield from _unhealthy(state)
    for uuid, process in state.observed.unallocated[:_MOST_UNALLOCATED]:
        yield (
            f"process {process.pid} ({process.name}) in {process.container} has "
            f"{format_size(process.bytes)} of card {card_index(uuid, node)} and no "
            "allocation: it bypasses gpushare. Run it with the runtime gpushare, without "
            "--privileged"
        )
    yield from _claims_without_containers(node, ledger)
    for name, engine in node.remote.items():
        yield engine.fault and f"remote engine {name}: {engine.fault}"
    yield node.scheduler_fault
    if state.history is not None and state.history.fault:
        yield f"events are not stored: {state.history.fault}"
    if state.metrics_history is not None and state.metrics_history.fault:
        yield f"the metrics history is not complete: {state.metrics_history.fault}"
    yield node.config_fault
    if not node.config_fault and config.outdated(node.config):
        yield (
            f"{node.config.file or config.DEFAULT_FILE} was changed after gpushared read it; "
            "sudo gpushare config reload"
        )


def status_row(state: DaemonState) -> DaemonStatus:
    """Return the daemon's own status."""
    driver, warnings = state.node.driver, list(filter(None, _warnings(state)))
    return DaemonStatus(
        version=gpushare.__version__,
        pid=os.getpid(),
        generation=state.ledger.generation,
        scheduler_pid=state.node.scheduler_pid,
        driver_version=driver.nvml.driver_version if driver else "",
        cuda_version=driver.nvml.loaded.cuda_version if driver else "",
        isolation=best_isolation(driver),
        cards=len(driver.cards) if driver else 0,
        tenants=sum(record.state != "none" for record in state.ledger.entries.values()),
        simulated=driver is not None and driver.is_simulated,
        time_scale=1.0 if driver is None else driver.time_scale,
        config="" if state.node.config.file is None else str(state.node.config.file),
        library_dir=str(state.node.libraries),
        run_dir=str(state.node.config.run_dir),
        node_name=node_name(state.node),
        kubernetes_mode=state.node.config.kubernetes_mode,
        default_placement=state.node.config.terms.defaults.placement or "",
        accepts_node_labels=state.node.config.accepts_node_labels,
        node_settings=dict(state.node.config.node_settings),
        eviction_fault=eviction_fault(state.node),
        warnings=[text[:_MOST_WARNING_LETTERS] for text in warnings[:_MOST_WARNINGS]],
        unified_cards=list(driver.nvml.loaded.unified) if driver else [],
    )
