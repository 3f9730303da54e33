# SPDX-License-Identifier: Apache-2.0
"""From a request to a reservation with pages, for containers and host processes alike.

The ledger is written first, then what it describes, so that a crash in between leaves a record that
expires, and never uncounted memory. If anything fails, everything is undone.

`numa: bind` keeps a container's CPUs and memory to the NUMA nodes of its cards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.daemon.core import clock
from gpushare.daemon.core.log import log
from gpushare.daemon.identity.processes import NOBODY, Process
from gpushare.daemon.lifecycle import release, unbound
from gpushare.daemon.limits import driver_limits
from gpushare.daemon.limits.burst import reclaim_burst, reclaim_rounds, update_burst_limits
from gpushare.daemon.pages.grant_page import CardGrant
from gpushare.daemon.pages.tenant_socket import TenantSocket
from gpushare.daemon.pages.tenants import SIZE_BYTES, Pages
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import NO_NODE
from gpushare.daemon.placement.request import (
    Bounds,
    NoRoom,
    PlacedCard,
    PlacementRequest,
    TenantCardUsage,
)
from gpushare.daemon.state import DaemonState, LoadedDriver
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.oci.cpuset import Bound, bind
from gpushare.oci.spec import Spec
from gpushare.quota import (
    EffectiveRequest,
    PodIdentity,
    QuotaRequest,
    RequestPolicy,
    exact_size,
    to_record,
)
from gpushare.quota.errors import quoted

_MOST_NOTES: Final = 16


@dataclass(frozen=True)
class TenantIdentity:
    """The container or process that requests.

    `label` is the SELinux label of a container's mounts; `owner` may mount its directory beside
    root; `status_owner` alone may write its status, None: whoever is in it. `terms` are what the
    node's policy says of it. `maker` is the process with which a reservation ends, None: none, and
    it expires. `cgroup` is that of a container that its maker binds. `shows_holders` is as in
    PlacementRequest.
    """

    key: str
    identity: str
    name: str
    engine: str
    bundle: str = ""
    uid: int = 0
    label: str = ""
    owner: int = 0
    status_owner: int | None = None
    isolation: str = driver_limits.INTERPOSER
    pod: PodIdentity | None = None
    terms: RequestPolicy = field(default_factory=RequestPolicy)
    maker: Process | None = None
    cgroup: str = ""
    shows_holders: bool = False


def truncated_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Return what is kept of a quota's notes: as many as a packet has room for."""
    if len(notes) <= _MOST_NOTES:
        return tuple(notes)
    return (*notes[: _MOST_NOTES - 1], f"and {len(notes) - _MOST_NOTES + 1} more")


def reserve(
    applicant: TenantIdentity, quota: QuotaRequest, effective: EffectiveRequest, state: DaemonState
) -> TenantRecord:
    """Find room and take it; the entry is `reserved` and its pages are there. The caller logs it.

    NoRoom, NoSuchCard, NoDriver, QuotaError: nothing was taken. OSError: the pages could not be
    made, and nothing is taken.
    """
    driver = state.loaded()
    state.integrity.refuse()
    _refuse_unsupported(quota, driver, whole=effective.kind == "exclusive")
    release_earlier(applicant, state)
    if effective.kind == "shared":
        driver.contexts.wait()
    effective = applicant.terms.max_per_request.put_down(quota, effective)
    try:
        placed = _place(applicant, quota, effective, state)
    except NoRoom:
        if not release.release_ended(state):
            raise
        placed = _place(applicant, quota, effective, state)
    _refuse_low_limit(quota, placed)
    record = _entry(applicant, quota, effective, placed, state)
    state.ledger.add(record)
    try:
        if record.shared:
            _make_pages(record, applicant, driver, state)
    except BaseException:
        release.release_tenant(record.key, state, "its pages could not be created")
        raise
    if effective.memory_limit_bytes is not None:
        update_burst_limits(state)
    # With the answer, not before it: a thread that is woken now takes the interpreter from us.
    state.loop.soon(state.shares_changed)
    return record


def log_reserved(record: TenantRecord, state: DaemonState) -> None:
    """Log what `reserve` returned; the history is a listener of the log, and has its own thread."""
    driver, first = state.loaded(), record.allocations[0]
    cards = [driver.card(allocation.uuid) for allocation in record.allocations]
    log(
        "tenant-reserved",
        tenant=record.key,
        id=record.id,
        name=record.title,
        mode="shared" if record.shared else "exclusive",
        cards=[card.index for card in cards if card is not None],
        memory_bytes=first.memory_bytes,
        cores=record.reserved_cores(first, state.policy_of(first.uuid)),
        policy=record.policy,
        notes=record.notes,
    )


def release_earlier(applicant: TenantIdentity, state: DaemonState) -> None:
    """Release what an earlier start of the same container left; NoRoom while it still runs."""
    record = state.ledger.entries.get(applicant.key)
    if record is None:
        return
    if unbound.runs_unbound(record):
        fix = "wait until gpushared has killed it"
        raise NoRoom(f"an earlier start of container {record.title} has left a process; {fix}")
    if record.state == "bound":
        release.kill_abandoned_init(record)
    if record.state == "bound" and not release.is_gone(record, state):
        fix = "stop it before you create it again"
        raise NoRoom(f"container {record.title} is still running (pid {record.pid}); {fix}")
    release.release_tenant(applicant.key, state, "the container is created again")


def _refuse_unsupported(quota: QuotaRequest, driver: LoadedDriver, *, whole: bool) -> None:
    """Refuse what cannot be held here: a quota that is not held is worse than none."""
    driver_limits.check_supported(quota, driver, whole=whole)
    if quota.oversubscribe == "host":
        raise quota.refuse("oversubscribe", "is not in this version", "leave it out")


def _place(
    applicant: TenantIdentity, quota: QuotaRequest, effective: EffectiveRequest, state: DaemonState
) -> tuple[PlacedCard, ...]:
    """Place a request where no tenant has burst memory of it, or is about to take it; NoRoom."""
    bounds = _bounds(applicant, quota, state)
    request = _ask(quota, effective, bounds, shows_holders=applicant.shows_holders)
    for _ in reclaim_rounds():
        capacities = state.capacities()
        placed = place_request(request, capacities, state.loaded().links)
        if not reclaim_burst(
            {one.card.uuid: one.memory_bytes for one in placed}, capacities, state
        ):
            break
    return placed


def _refuse_low_limit(quota: QuotaRequest, placed: tuple[PlacedCard, ...]) -> None:
    """Refuse a memory-limit below the memory, which as a percentage is known only now."""
    most = max(one.memory_bytes for one in placed)
    if quota.memory_limit_bytes is not None and quota.memory_limit_bytes < most:
        percent = quota.requested["memory-percent"]
        rule = f"is below {percent.source} {quoted(percent.shown)}, {exact_size(most)}"
        raise quota.refuse("memory-limit", rule, f"use {exact_size(most)} or more")


def _bounds(applicant: TenantIdentity, quota: QuotaRequest, state: DaemonState) -> Bounds:
    """Return what the node's policy leaves of each card to `applicant`."""
    whose, others = _same_group(applicant, state)
    driver = state.loaded()
    parts = tuple(
        TenantCardUsage(
            *(record.key, record.title, card, allocation.most_bytes),
            record.reserved_cores(allocation, state.policy_of(allocation.uuid)),
        )
        for record in others
        for allocation in record.allocations
        if (card := driver.card(allocation.uuid)) is not None
    )
    return Bounds(
        applicant.terms.max_per_request,
        applicant.terms.max_per_card,
        applicant.terms.max_per_node,
        whose,
        parts,
        memory_is_set=any(map(quota.is_set, ("memory", "memory-percent"))),
        cores_are_set=quota.is_set("cores"),
    )


def _same_group(applicant: TenantIdentity, state: DaemonState) -> tuple[str, list[TenantRecord]]:
    """Return what `together` holds for: the tenants of a namespace, or those of a user."""
    records = state.ledger.entries.values()
    if applicant.isolation == "advisory":
        own = [e for e in records if e.isolation == "advisory" and e.uid == applicant.uid]
        return f"user {applicant.uid}", own
    namespace = applicant.pod.namespace if applicant.pod is not None else ""
    if not namespace:
        return "", []
    return f"namespace {namespace}", [e for e in records if e.namespace == namespace]


def _ask(
    quota: QuotaRequest, effective: EffectiveRequest, bounds: Bounds, *, shows_holders: bool
) -> PlacementRequest:
    whole = effective.kind == "exclusive"
    return PlacementRequest(
        whole=whole,
        count=effective.count,
        memory_bytes=None if whole else effective.memory_bytes,
        memory_percent=None if whole else effective.memory_percent,
        memory_limit_bytes=None if whole else effective.memory_limit_bytes,
        cores=0 if whole else effective.cores,
        policy=effective.policy,
        policy_is_set=quota.is_set("policy"),
        devices=effective.devices,
        minors=effective.minors,
        allow=quota.allow,
        deny=quota.deny,
        strategy=quota.placement or "",
        bounds=bounds,
        sources={key: str(value.source) for key, value in quota.requested.items()},
        shows_holders=shows_holders,
    )


def _entry(
    applicant: TenantIdentity,
    quota: QuotaRequest,
    effective: EffectiveRequest,
    placed: tuple[PlacedCard, ...],
    state: DaemonState,
) -> TenantRecord:
    whole = effective.kind == "exclusive"
    pod = applicant.pod or PodIdentity("")
    maker = applicant.maker or NOBODY
    return TenantRecord(
        key=applicant.key,
        state="reserved",
        id=applicant.identity,
        name=applicant.name,
        engine=applicant.engine,
        bundle=applicant.bundle,
        uid=applicant.uid,
        policy="" if whole else effective.policy,
        weight=effective.weight,
        priority=effective.priority,
        class_=effective.class_,
        isolation=driver_limits.initial_isolation(applicant.isolation, whole=whole),
        quota=to_record(quota.requested),
        requested=to_record(quota.before_operator),
        notes=truncated_notes(effective.notes),
        namespace=pod.namespace,
        sandbox=pod.sandbox,
        pod_uid=pod.uid,
        container=pod.container,
        created=time.time(),
        expires=clock.boottime() + state.config.timing.bind_timeout_seconds,
        maker=maker.pid,
        maker_starttime=maker.starttime,
        cgroup=applicant.cgroup,
        allocations=tuple(
            CardAllocation(
                *(one.card.uuid, one.memory_bytes, effective.cores, one.whole),
                memory_limit_bytes=effective.memory_limit_bytes,
            )
            for one in placed
        ),
    )


def _make_pages(
    record: TenantRecord, applicant: TenantIdentity, driver: LoadedDriver, state: DaemonState
) -> None:
    directory = state.mounts.make(
        record.key, size_bytes=SIZE_BYTES, owner=applicant.owner, label=applicant.label
    )
    granted = [_card_grant(allocation, driver) for allocation in record.allocations]
    pages = Pages.make(directory, record.key, granted, applicant.status_owner)
    try:
        tenant_socket = TenantSocket.listen(record.key, directory)
    except BaseException:
        pages.close()
        raise
    state.tenants.add(record.key, pages)
    state.loop.soon(lambda: state.watch.listen(tenant_socket))
    state.loop.soon(state.mounts.refill)


def _card_grant(allocation: CardAllocation, driver: LoadedDriver) -> CardGrant:
    card = driver.card(allocation.uuid)
    assert card is not None, allocation.uuid
    context_bytes = driver.contexts.bytes_of(card)
    return CardGrant(allocation.uuid, allocation.memory_bytes, context_bytes, allocation.cores)


BIND = "bind"


def numa_binding(original: Spec, record: TenantRecord, state: DaemonState) -> Bound:
    """Return the CPUs and memory nodes that a container keeps; problems are noted.

    Where the node of one of its cards is not known, all of it: its CPUs may be anywhere.
    """
    driver = state.loaded()
    nodes = {
        allocation.uuid: driver.links.node(allocation.uuid) for allocation in record.allocations
    }
    unknown = [uuid for uuid, number in nodes.items() if number == NO_NODE]
    if unknown:
        cards = ", ".join(
            str(card.index) for uuid in unknown if (card := driver.card(uuid)) is not None
        )
        note = f"numa: bind: the NUMA node of card {cards} is not known: left as is"
        found = Bound(notes=(note,))
    else:
        path = original.at("linux", "cgroupsPath")
        allowed = state.numa.allowed(path if isinstance(path, str) else "")
        found = bind(original, state.numa.of(nodes.values()), allowed)
    if found.notes:
        state.decide.run(lambda: _note_binding(record, found.notes, state))
        for note in found.notes:
            log("tenant-request-adjusted", tenant=record.key, name=record.title, note=note)
    return found


def _note_binding(record: TenantRecord, notes: Sequence[str], state: DaemonState) -> None:
    known = state.ledger.require(record)
    state.ledger.describe(record.key, notes, known.uninterposed, known.compat)
