# SPDX-License-Identifier: Apache-2.0
"""Operations on the node: the daemon's status, metrics, history and configuration, and its cards.

An operator sets a card's sharing policy, cordons and uncordons it. No tenant is placed on a
cordoned card; its tenants keep running.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import gpushare
from gpushare import config, protocol
from gpushare.daemon.cards.mps_state import MPS, MpsCardState
from gpushare.daemon.core.log import log
from gpushare.daemon.identity.container_names import SHORTEST_ID
from gpushare.daemon.lifecycle import bind
from gpushare.daemon.limits import best_isolation
from gpushare.daemon.observed import UnallocatedContainer
from gpushare.daemon.operator.reload import reload_config, reset_node_setting, set_node_setting
from gpushare.daemon.placement.model import Card, CardCapacity
from gpushare.daemon.placement.request import NoRoom, NoSuchCard, find_card
from gpushare.daemon.service.control_request import (
    ControlReply,
    ControlRequest,
    MalformedRequest,
    Operation,
    TenantNotFound,
    reply,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.history import EventSubject, History
from gpushare.daemon.store.overrides import CORDONED
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views import metrics, status_rows
from gpushare.daemon.views.metrics import ended_metrics
from gpushare.daemon.views.status_rows import card_index, evicted_on, eviction_fault, profile_rows
from gpushare.protocol import CardStatus, DaemonStatus, HistoryEvent
from gpushare.quota.errors import quoted
from gpushare.quota.keys import KEYS, read
from gpushare.quota.request import ValueSource
from gpushare.quota.size import format_size

_MOST_NUMBER: Final = 1 << 53  # that JSON has a number for everywhere
_SETTLE_SECONDS: Final = 1.0  # a slow disk delays those who read, and never longer than this
_LONG_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)  # one that people shorten
_MOST_LISTED: Final = 16
_MOST_REMEMBERED: Final = 8


def history(request: ControlRequest, state: DaemonState) -> ControlReply:
    """Answer with a page of events; TenantNotFound: the name means nothing, or too much."""
    name, since = request.fields.get("name", ""), request.fields.get("since", 0)
    if not isinstance(name, str) or len(name) > 256:
        raise MalformedRequest("name is not a string of at most 256 characters")
    if type(since) not in {int, float} or not 0 <= since <= _MOST_NUMBER:
        raise MalformedRequest("since is not a number of seconds since 1970")
    after = request.number("after", 0, _MOST_NUMBER)
    if (store := state.history) is None:
        return reply()
    store.settle(_SETTLE_SECONDS)  # the caller may ask for what it just caused
    records = bind.with_names(list(state.ledger.entries.values()), state)
    # All pages of one answer are of the same containers.
    subject = store.subjects.pop(name, None) if after else None
    if subject is None:
        subject = _find_subject(name, records, store, state) if name else EventSubject()
    found = store.page(subject, since, after, protocol.HISTORY_ROWS)
    if name and len(found) == protocol.HISTORY_ROWS:
        store.subjects[name] = subject
        for old in list(store.subjects)[:-_MOST_REMEMBERED]:
            store.subjects.pop(old, None)
    return (dict(event) for event in _with_names(found, records)), {}


def _with_names(
    events: Sequence[HistoryEvent], records: Sequence[TenantRecord]
) -> Iterator[HistoryEvent]:
    """Yield `events` with the name that each container has now, if it still exists."""
    current = {record.key: record for record in records}
    for event in events:
        record = current.get(event["key"])
        yield event if record is None else {**event, "id": record.id, "name": record.title}


@dataclass
class _KnownContainer:
    """A container that exists or has events, with the names it had, the last one last."""

    id: str
    keys: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.names[-1] if self.names else self.id[:12]

    def is_named(self, name: str) -> bool:
        ends = any(f"/{one}".endswith(f"/{name}") for one in self.names)
        return ends or name == self.id or name in self.keys

    def is_of_pod(self, name: str) -> bool:
        """Whether `name` is its pod, namespace/pod or namespace."""
        return any(f"/{name}/" in f"/{one}" for one in self.names)

    def begins(self, name: str) -> bool:
        return any(f"/{name}" in f"/{one}" for one in self.names)


def _find_subject(
    name: str, records: Sequence[TenantRecord], store: History, state: DaemonState
) -> EventSubject:
    """Return what `name` means; TenantNotFound.

    The first of these that there is: containers by name, the end of one (`train-0/main`), ID or
    key; those of a pod; the one container whose name or ID begins so.
    """
    containers = _known_containers(name, records, store)
    cards = () if state.node.driver is None else state.node.driver.cards
    is_card = any(card.uuid == name for card in cards)
    is_card = is_card or (not containers and store.has_card(name))
    by_id = [one for one in containers if one.id.startswith(name)]
    found = [one for one in containers if one.is_named(name)]
    if found:
        shortened = len(name) >= SHORTEST_ID
        others = [
            one for one in by_id if shortened and _LONG_ID.fullmatch(one.id) and one not in found
        ]
        if others:
            what = "is the name of one container and the start of the ID of another"
            raise _ambiguous(name, what, [*found, *others])
    elif not is_card:
        found = [one for one in containers if one.is_of_pod(name)]
    if not found and not is_card:
        found = [one for one in containers if one in by_id or one.begins(name)]
        if len(found) > 1 and (by_id or len({one.title for one in found}) > 1):
            raise _ambiguous(name, "is the start of the names or IDs of several containers", found)
    if not found and not is_card:
        known = [record.title for record in records][:_MOST_LISTED]
        text = f"no container is named {quoted(name)}, and none with events was; see gpushare ps -a"
        raise TenantNotFound(text, known)
    return EventSubject(
        card=name if is_card else "",
        keys=frozenset(key for one in found for key in one.keys),
        ids=frozenset(one.id or one.title for one in found),
    )


def _known_containers(
    name: str, records: Sequence[TenantRecord], store: History
) -> list[_KnownContainer]:
    """Return the containers that exist, and those whose events could be of `name`."""
    containers: dict[str, _KnownContainer] = {}
    stored = store.containers(name)
    ids = {key: identity for key, identity, _ in stored if key and identity}
    now = [(record.key, record.id, record.name) for record in records]
    for key, identity, called in (*stored, *now):
        known = identity or ids.get(key, "")
        container = containers.setdefault(known or key or called, _KnownContainer(known))
        container.keys |= {key} if key else set()
        container.names += [called] if called else []
    return list(containers.values())


def _ambiguous(name: str, what: str, found: Sequence[_KnownContainer]) -> TenantNotFound:
    listed = found[:_MOST_LISTED]
    texts = ", ".join(f"{one.title} (ID {one.id[:12]})" for one in listed)
    more = f" and {len(found) - len(listed)} more" if len(found) > len(listed) else ""
    text = f"{quoted(name)} {what}: {texts}{more}. Use the whole name, or an ID"
    return TenantNotFound(text, [one.id[:12] for one in listed])


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
    if state.node.driver is None:
        return
    for capacity in state.accounts.capacities():
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
    driver = state.node.driver
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
    server = state.node.mps.cards.get(capacity.card.uuid, MpsCardState())
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
    driver = state.node.driver
    warnings = [*state.node.warnings, *state.ledger.notices]
    stores = state.node.overrides.notice, state.node.card_overrides.notice, state.node.labels.notice
    faults = state.ledger.fault, state.ledger.integrity.why, *stores
    warnings += [fault for fault in faults if fault]
    if driver is None:
        warnings.append(state.node.no_driver_reason)
    elif state.node.driver_fault:
        warnings.append(state.node.driver_fault)
    elif state.observed.usage.stale:
        warnings.append(f"the driver's figures are stale: {state.observed.usage.stale}")
    warnings += _unhealthy(state)
    warnings += _unlisted_instances(state)
    warnings += [
        _unallocated_warning(one, state) for one in state.observed.unallocated[:_MOST_UNALLOCATED]
    ]
    if state.node.scheduler_fault:
        warnings.append(state.node.scheduler_fault)
    if state.history is not None and state.history.fault:
        warnings.append(f"events are not stored: {state.history.fault}")
    if state.metrics_history is not None and state.metrics_history.fault:
        warnings.append(f"the metrics history is not complete: {state.metrics_history.fault}")
    if state.node.config_fault:
        warnings.append(state.node.config_fault)
    elif config.outdated(state.node.config):
        warnings.append(
            f"{state.node.config.file or config.DEFAULT_FILE} was changed after gpushared read it; "
            "sudo gpushare config reload"
        )
    return DaemonStatus(
        version=gpushare.__version__,
        pid=os.getpid(),
        generation=state.ledger.generation,
        scheduler_pid=state.node.scheduler_pid,
        driver_version=driver.nvml.driver_version if driver else "",
        cuda_version=driver.nvml.cuda_version if driver else "",
        isolation=best_isolation(driver),
        cards=len(driver.cards) if driver else 0,
        tenants=sum(record.state != "none" for record in state.ledger.entries.values()),
        simulated=driver is not None and driver.is_simulated,
        time_scale=1.0 if driver is None else driver.time_scale,
        config="" if state.node.config.file is None else str(state.node.config.file),
        library_dir=str(state.node.libraries),
        run_dir=str(state.node.config.run_dir),
        node_name=metrics.node_name(state),
        kubernetes_mode=state.node.config.kubernetes_mode,
        accepts_node_labels=state.node.config.accepts_node_labels,
        node_settings=dict(state.node.config.node_settings),
        eviction_fault=eviction_fault(state),
        warnings=[text[:_MOST_WARNING_LETTERS] for text in warnings[:_MOST_WARNINGS]],
    )


_REASON_MOST: Final = 200


def _cards(_request: ControlRequest, state: DaemonState) -> ControlReply:
    if state.node.driver is None:
        return reply()
    capacities = state.accounts.capacities()
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
        return find_card(request.text("card", 96), state.accounts.capacities()).card
    except NoSuchCard as error:
        raise TenantNotFound(str(error), []) from error


def _card(uuid: str, state: DaemonState) -> ControlReply:
    """Answer with the card as it is now."""
    capacities = state.accounts.capacities()
    capacity = next(capacity for capacity in capacities if capacity.card.uuid == uuid)
    return reply({"card": _card_row(capacity, capacities, state)})


def _card_row(
    capacity: CardCapacity, capacities: Sequence[CardCapacity], state: DaemonState
) -> CardStatus:
    uuid, fault = capacity.card.uuid, status_rows.scheduling_fault(state)
    sensors = metrics.card_sensors(state, uuid)
    row = status_rows.card_row(capacity, capacities, state.node.loaded().links, fault, sensors)
    row["evicted_tenants"], row["evicted_bytes"] = evicted_on(uuid, state)
    return row


def set_card_policy(uuid: str, policy: str, state: DaemonState) -> None:
    """Set the policy of the shared tenants of a card; "": each keeps its own.

    NoRoom if the card cannot reserve that many cores: nothing was changed.
    """
    capacities = state.accounts.capacities()
    capacity = next(capacity for capacity in capacities if capacity.card.uuid == uuid)
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
        state.node.card_overrides.set(uuid, {"policy": policy})
    else:
        state.node.card_overrides.forget(uuid, "policy")
    log("card-policy-changed", card=uuid, policy=policy or "of each container")
    state.ledger.changed()


def cordon_card(card: Card, reason: str, state: DaemonState) -> None:
    """Place nothing new on `card`, until `uncordon_card`, across restarts and reboots; OSError."""
    if state.node.card_overrides.of(card.uuid).get(CORDONED) == reason:
        return
    state.node.card_overrides.set(card.uuid, {CORDONED: reason})
    log("card-cordoned", card=card.uuid, index=card.index, reason=reason or "no reason given")
    state.ledger.changed()


def uncordon_card(card: Card, state: DaemonState) -> None:
    """Place on `card` again; OSError. One that is not cordoned is fine."""
    if CORDONED not in state.node.card_overrides.of(card.uuid):
        return
    state.node.card_overrides.forget(card.uuid, CORDONED)
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
