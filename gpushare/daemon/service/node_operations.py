# SPDX-License-Identifier: Apache-2.0
"""Operations on the node: the daemon's status, metrics, history and configuration, and its cards.

An operator sets a card's sharing policy, cordons and uncordons it. No tenant is placed on a
cordoned card; its tenants keep running.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import gpushare
from gpushare import config
from gpushare.daemon.cards.mps_state import MPS, MpsCardState
from gpushare.daemon.core.log import log
from gpushare.daemon.limits.driver_limits import best_isolation
from gpushare.daemon.operator.node_labels import reset_node_setting, set_node_setting
from gpushare.daemon.operator.reload import reload_config
from gpushare.daemon.placement.model import Card, CardCapacity
from gpushare.daemon.placement.request import NoRoom, NoSuchCard, find_card
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    Operation,
    TenantNotFound,
    reply,
)
from gpushare.daemon.service.history_operation import history
from gpushare.daemon.state import DaemonState, UnallocatedContainer
from gpushare.daemon.store.overrides import CORDONED
from gpushare.daemon.views import metrics, status_rows
from gpushare.daemon.views.ended_tenants import ended_metrics
from gpushare.daemon.views.eviction_rows import evicted_on, eviction_fault
from gpushare.daemon.views.profile_rows import profile_rows
from gpushare.daemon.views.status_rows import card_index
from gpushare.protocol import CardStatus, DaemonStatus
from gpushare.quota.keys import KEYS, read
from gpushare.quota.request import ValueSource
from gpushare.quota.size import format_size

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
    # The last: a tenant that is released meanwhile is in it, also if it was among the others.
    ended: Iterator[Mapping[str, Any]] = ({"ended": row} for row in ended_metrics(state))
    return chain(cards, tenants, ended), {"node": metrics.daemon_metrics(state)}


def _reload(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    return reply({"changed": reload_config(state)})


def _node_setting(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    key = request.text("key", 64)
    if "source" in request.fields:
        set_node_setting(key, request.text("value"), request.text("source", 400), state)
    else:
        reset_node_setting(key, state)
    return reply()


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
        elif capacity.backend == MPS:
            yield from _mps_faults(capacity, state)
        elif capacity.compute_mode:
            yield (
                f"card {capacity.card.index} is in compute mode {capacity.compute_mode}: one "
                "process at a time can use it, so no container gets a share. An MPS control daemon "
                f"may have set it; nvidia-smi -i {capacity.card.index} -c DEFAULT resets it"
            )


def _unlisted_instances(state: DaemonState) -> Iterator[str]:
    """Yield the MIG instances that the CDI spec of the driver does not list."""
    driver = state.driver
    instances = [card for card in driver.cards if card.instance] if driver else []
    if driver is None or not instances:
        return
    listed = driver.files.cdi.devices
    missing = [
        card.instance.names[0]
        for card in instances
        if card.instance and listed.keys().isdisjoint((card.uuid, *card.instance.names))
    ]
    if missing:
        yield (
            f"MIG instances {', '.join(missing)} are not in the CDI spec of the driver, so no "
            "container gets them. Generate it again: gpushare cdi generate"
        )


def _mps_faults(capacity: CardCapacity, state: DaemonState) -> Iterator[str]:
    """Yield why a card in MPS mode takes no containers, or no processes."""
    card = f"card {capacity.card.index}"
    if capacity.backend_fault:
        yield f"{card} is in MPS mode, and {capacity.backend_fault}"
    server = state.mps.cards.get(capacity.card.uuid, MpsCardState())
    if server.server_state == "FAULT":
        records = state.ledger.entries
        names = [records[key].title for key in sorted(server.losses) if key in records]
        held = f": {', '.join(names)}" if names else ""
        yield (
            f"the MPS server of {card} had a fatal fault, and takes no processes until the "
            f"containers of that moment have ended{held}. Restart them"
        )


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
    stores = state.overrides.notice, state.card_overrides.notice, state.node_labels.notice
    faults = state.ledger.fault, state.integrity.why, *stores
    warnings += [fault for fault in faults if fault]
    if driver is None:
        warnings.append(state.no_driver_reason)
    elif state.driver_fault:
        warnings.append(state.driver_fault)
    elif state.observed.usage.stale:
        warnings.append(f"the driver's figures are stale: {state.observed.usage.stale}")
    warnings += _unhealthy(state)
    warnings += _unlisted_instances(state)
    warnings += [
        _unallocated_warning(one, state) for one in state.observed.unallocated[:_MOST_UNALLOCATED]
    ]
    if state.scheduler_fault:
        warnings.append(state.scheduler_fault)
    if state.history is not None and state.history.fault:
        warnings.append(f"events are not stored: {state.history.fault}")
    if state.metrics_history is not None and state.metrics_history.fault:
        warnings.append(f"the metrics history is not complete: {state.metrics_history.fault}")
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
        accepts_node_labels=state.config.accepts_node_labels,
        node_settings=dict(state.config.node_settings),
        eviction_fault=eviction_fault(state),
        warnings=[text[:_MOST_WARNING_LETTERS] for text in warnings[:_MOST_WARNINGS]],
    )


_REASON_MOST: Final = 200


def _cards(_request: ControlRequest, state: DaemonState) -> ControlReply:
    if state.driver is None:
        return reply()
    capacities = state.capacities()
    rows = (_card_row(each, capacities, state) for each in capacities)
    profiles = list(profile_rows(state))
    return (dict(row) for row in rows), {"profiles": profiles} if profiles else {}


def _card_policy(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    card = _named(request, state)
    policy = ""
    if "policy" in request.fields:
        policy = str(
            read("policy", ValueSource("option", "policy"), request.text("policy"), KEYS).value
        )
    set_card_policy(card.uuid, policy, state)
    return _card(card.uuid, state)


def _cordon(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    card = _named(request, state)
    reason = request.text("reason", _REASON_MOST) if "reason" in request.fields else ""
    cordon_card(card, reason, state)
    return _card(card.uuid, state)


def _uncordon(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    card = _named(request, state)
    uncordon_card(card, state)
    return _card(card.uuid, state)


def _named(request: ControlRequest, state: DaemonState) -> Card:
    """Return the card of a request; TenantNotFound."""
    try:
        return find_card(request.text("card", 96), state.capacities()).card
    except NoSuchCard as error:
        raise TenantNotFound(str(error), []) from error


def _card(uuid: str, state: DaemonState) -> ControlReply:
    """Answer with the card as it is now."""
    capacities = state.capacities()
    capacity = next(capacity for capacity in capacities if capacity.card.uuid == uuid)
    return reply({"card": _card_row(capacity, capacities, state)})


def _card_row(
    capacity: CardCapacity, capacities: Sequence[CardCapacity], state: DaemonState
) -> CardStatus:
    uuid, fault = capacity.card.uuid, status_rows.scheduling_fault(state)
    sensors = metrics.card_sensors(state, uuid)
    row = status_rows.card_row(capacity, capacities, state.loaded().links, fault, sensors)
    row["evicted_tenants"], row["evicted_bytes"] = evicted_on(uuid, state)
    return row


def set_card_policy(uuid: str, policy: str, state: DaemonState) -> None:
    """Set the policy of the shared tenants of a card; "": each keeps its own.

    NoRoom if the card cannot reserve that many cores: nothing was changed.
    """
    capacity = next(capacity for capacity in state.capacities() if capacity.card.uuid == uuid)
    reserved = [
        (record.title, cores)
        for record in state.ledger.entries.values()
        for allocation in record.allocations
        if allocation.uuid == uuid and not allocation.whole
        if (cores := record.reserved_cores(allocation, policy))
    ]
    reserved += [(use.tenant, use.cores) for use in capacity.reservations if use.cores]
    together = sum(cores for _, cores in reserved)
    if together > 100:
        names = ", ".join(f"{name} {cores}" for name, cores in reserved)
        raise NoRoom(
            f"card {capacity.card.index} cannot reserve {together} % of its compute, as "
            f"{policy or 'its containers'} would require ({names}); first reduce one of them: "
            "gpushare set NAME --cores N"
        )
    if policy:
        state.card_overrides.set(uuid, {"policy": policy})
    else:
        state.card_overrides.forget(uuid, "policy")
    log("card-policy-changed", card=uuid, policy=policy or "of each container")
    state.ledger.changed()


def cordon_card(card: Card, reason: str, state: DaemonState) -> None:
    """Place nothing new on `card`, until `uncordon_card`, across restarts and reboots; OSError."""
    if state.card_overrides.of(card.uuid).get(CORDONED) == reason:
        return
    state.card_overrides.set(card.uuid, {CORDONED: reason})
    log("card-cordoned", card=card.uuid, index=card.index, reason=reason or "no reason given")
    state.ledger.changed()


def uncordon_card(card: Card, state: DaemonState) -> None:
    """Place on `card` again; OSError. One that is not cordoned is fine."""
    if CORDONED not in state.card_overrides.of(card.uuid):
        return
    state.card_overrides.forget(card.uuid, CORDONED)
    log("card-uncordoned", card=card.uuid, index=card.index)
    state.ledger.changed()


NODE_OPERATIONS: Final[Mapping[str, Operation]] = {
    "cards": Operation(_cards),
    "card-policy": Operation(_card_policy, "decide"),
    "card-cordon": Operation(_cordon, "decide"),
    "card-uncordon": Operation(_uncordon, "decide"),
    "status": Operation(_status),
    "metrics": Operation(_metrics),
    "history": Operation(history),
    "reload": Operation(_reload, "decide"),
    "node-setting": Operation(_node_setting, "decide"),
}
