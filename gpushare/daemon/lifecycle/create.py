# SPDX-License-Identifier: Apache-2.0
"""The create operation: a bundle in, a bundle with its allocation out, and a reservation.

Nothing is half done: until the spec is replaced, in one rename at the very end, the bundle is as
the engine wrote it, and any failure before that releases the reservation.

The bundle and the image choose how long it takes to read them, and may never answer (a FUSE file
system). So each create has a thread of its own, of `DaemonState.creates`, and the decide thread
does only what needs the ledger. Creates of one container come one after another.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.core.log import log
from gpushare.daemon.freezer import expected_cgroup
from gpushare.daemon.identity import container_names, processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.lifecycle import (
    container_edits,
    release,
    scheduled,
)
from gpushare.daemon.lifecycle.container_edits import find_image_needs
from gpushare.daemon.lifecycle.driver_loader import take_over_changed_driver
from gpushare.daemon.lifecycle.queue import (
    Applicant,
    Queue,
    QueueFull,
    RoomForStarts,
    TicketNotFound,
    lacks_room,
    shown_by_container,
)
from gpushare.daemon.lifecycle.reserve import (
    TenantIdentity,
    log_reserved,
    release_earlier,
    reserve,
    truncated_notes,
)
from gpushare.daemon.node import Node
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger, ReservationLost
from gpushare.daemon.store.record import TenantRecord, settings_key
from gpushare.daemon.store.ticket import TicketSource
from gpushare.errors import UserError
from gpushare.oci import edits, injected_gpu, spec
from gpushare.oci.image_view import ImageView
from gpushare.oci.request import (
    is_of_kubelet,
    parse_spec_request,
    requests_gpu,
    sandbox_annotations,
    trusted_annotations,
)
from gpushare.oci.spec import Spec
from gpushare.protocol.rows import TenantPod
from gpushare.quota import dialects
from gpushare.quota.annotations import PodIdentity, pod_of, scoped_name
from gpushare.quota.dialects import translate
from gpushare.quota.effective_request import EffectiveRequest, whole_cards_refused
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS
from gpushare.quota.request import (
    PROFILE,
    WAIT,
    EngineCards,
    QuotaRequest,
    RequestedValue,
    requests_memory,
)
from gpushare.quota.request_policy import ResolvedRequest
from gpushare.quota.values import NO_WAIT_IN_PODS

#: In which a container of `gpushare run --wait -- docker run` shows its ticket.
TICKET_VARIABLE: Final = "GPUSHARE_TICKET"
STRONG: Final = "strong"
LAUNCHER: Final = "launcher"


class RestoreRefused(UserError):
    """The container requests a GPU and would be restored from a checkpoint."""


class CreateAbandoned(UserError):
    """The program that requested a container has gone, or its time is over."""


@dataclass(frozen=True)
class NewContainer:
    """A container about to be made; the descriptors are of its bundle and its root filesystem."""

    identity: str
    path: str
    marker: str
    bundle_fd: int
    rootfs_fd: int
    # The process that makes it: the launcher, which becomes the low-level runtime; 0: not visible.
    maker: int = 0
    binds: bool = False  # the maker can bind the container itself
    is_restore: bool = False  # from a checkpoint
    is_abandoned: Callable[[], bool] = lambda: False  # no client waits for the container any more
    waits: Callable[[float], None] = lambda _: None  # has the client wait for so long, 0: as ever
    about: dict[str, Any] = field(default_factory=dict)  # for the log of a refusal, filled in later

    def check(self) -> None:
        """Raise CreateAbandoned once no client waits for the container."""
        if self.is_abandoned():
            raise CreateAbandoned(f"container {self.identity}: its runtime does not wait any more")

    @property
    def key(self) -> str:
        """The tenant's key: the same for every start of the same container."""
        name = f"{self.path}\0{self.identity}".encode()
        return hashlib.sha256(name).hexdigest()[:16]


@dataclass(frozen=True)
class ContainerRequest(ResolvedRequest):
    """The request of a container."""

    placed: injected_gpu.InjectedGpu = field(default_factory=injected_gpu.InjectedGpu)  # by others
    pod: PodIdentity | None = None
    grant: scheduled.SchedulerGrant | None = None  # what the scheduler of Kubernetes allocated
    secret: str = ""  # of the ticket that the container shows; empty: none


def create(bundle: NewContainer, state: DaemonState, room: RoomForStarts) -> dict[str, Any]:
    """Give the container what it requests: `{"mode": "none" | "shared" | "exclusive", "key": ...}`.

    QuotaError, NoRoom, NoSuchCard, NoDriver, SpecError, CdiError, OSError, CreateAbandoned,
    ReservationLost, MpsRefused: it gets nothing, and the bundle is as it was.
    """
    with state.creating.lock(bundle.key, bundle.check):
        bundle.check()
        return _create(bundle, state, room)


def _create(bundle: NewContainer, state: DaemonState, room: RoomForStarts) -> dict[str, Any]:
    _refuse_second_maker(bundle, state.ledger)  # and again by the decide thread, which reserves
    loaded = spec.load(bundle.bundle_fd)
    original = edits.strip(loaded)
    # Annotations are a user's: any container can be marked as a sandbox, with a card in it.
    if original.is_sandbox() and not injected_gpu.is_placed(original):
        return _nothing(bundle, original, loaded, None, state)
    request = _read_request(bundle, original, state.node, state.ledger)
    if request.effective.kind == "none":
        stripped = edits.apply(original, edits.Edits(), request.placed.taken)
        return _nothing(bundle, stripped, loaded, request.effective, state)
    if bundle.is_restore:
        raise RestoreRefused(
            f"container {bundle.identity} requests a GPU, and a checkpoint has no state of the "
            "driver. Create the container instead."
        )
    is_shared = request.effective.kind == "shared"
    needs = find_image_needs(
        original, bundle.rootfs_fd, request.terms.compat, state.node, shared=is_shared
    )
    applicant = replace(
        _applicant(bundle, original, state.node),
        image_needs=needs,
        claim="" if request.grant is None else request.grant.claim,
        maker=_maker_process(bundle),
        cgroup=_cgroup(bundle, original, state.node),
        shows_holders=state.node.config.read_group is None
        and not is_of_kubelet(original, bundle.path),
    )
    has_spare = is_shared and not applicant.label

    def reserve_now() -> TenantRecord:
        return state.in_start(lambda: _reserve(bundle, applicant, request, state, room.queue))

    try:
        with state.mounts.claimed() if has_spare else nullcontext():
            try:
                record = reserve_now()
            except NoRoom as error:
                about = applicant.name or bundle.identity[:12], request.effective.class_ == "online"
                record = room.reserve_again(error, about, reserve_now, bundle.waits)
    except UserError as error:
        if request.quota.wait_seconds is None or not lacks_room(error):
            raise
        record = _wait_and_reserve(bundle, applicant, request, state, room.queue)
    try:
        edited = _edited(bundle, original, request, record, state)
        bundle.check()
        state.ledger.require(record)
        spec.store(bundle.bundle_fd, edited, loaded)
    except BaseException:
        log_reserved(record, state.node)
        state.decide.run(lambda: _release_failed(record, state))
        raise
    state.loop.soon(lambda: _follow(record, state))
    binder = LAUNCHER if record.cgroup else "hook"
    return {"mode": request.effective.kind, "key": record.key, "bind": binder}


def _wait_and_reserve(
    bundle: NewContainer,
    applicant: TenantIdentity,
    request: ContainerRequest,
    state: DaemonState,
    queue: Queue,
) -> TenantRecord:
    """Reserve as soon as there is room, within the container's GPUSHARE_WAIT; as `_reserve`."""
    waiting = WaitingCreate(
        applicant.name or bundle.identity[:12],
        bundle.maker,
        request.quota,
        request.placed.cards,
        bundle.check,
        bundle.waits,
    )
    with granted(waiting, state, queue) as secret:
        shown = replace(request, secret=secret or request.secret)
        return state.in_start(lambda: _reserve(bundle, applicant, shown, state, queue))


def _follow(record: TenantRecord, state: DaemonState) -> None:
    """Do what the container's start need not wait for, on the main thread after the answer.

    If gpushared is killed before, the next one watches the maker of each reservation.
    """
    if record.maker:
        state.decide.submit(lambda: _watch_maker(record, state))
    log_reserved(record, state.node)


def _watch_maker(record: TenantRecord, state: DaemonState) -> None:
    """See that the reservation goes with its maker, unless it is another's by now, or bound."""
    now = state.ledger.entries.get(record.key)
    if now is not None and (now.state, now.maker, now.created) == (
        "reserved",
        record.maker,
        record.created,
    ):
        release.watch_maker(record, state)


def _release_failed(record: TenantRecord, state: DaemonState) -> None:
    """Release a reservation whose container could not be set up, unless it is another's now."""
    try:
        state.ledger.require(record)
    except ReservationLost:
        return
    release.release_tenant(record.key, state, "its container could not be set up")


def _read_request(
    bundle: NewContainer, original: Spec, node: Node, ledger: Ledger
) -> ContainerRequest:
    """Return what the container requests, from whatever source, and the effective request."""
    placed = (
        injected_gpu.InjectedGpu()
        if node.driver is None
        else injected_gpu.find(original, node.driver.files)
    )
    annotations = trusted_annotations(bundle.path, original.annotations)
    pod = pod_of(annotations)
    _describe(bundle, annotations, pod)
    settings = (
        bundle.identity if pod is None else settings_key(bundle.identity, pod.uid, pod.container)
    )
    grant = scheduled.find_grant(original, pod, node, ledger, bundle.check)
    parsed = parse_spec_request(
        annotations,
        original.variables,
        of_pod=sandbox_annotations(annotations, bundle.path),
        cards=placed.cards,
        terms_of=node.config.terms_of,
        operator=_of_quota(node.overrides.of(settings)),
        scheduled=None if grant is None else grant.request,
    )
    if parsed.quota.requested or bundle.marker == STRONG:
        node.loaded()  # nothing of ours can be in the way of what asks for nothing of ours
    mode, in_pod = node.config.kubernetes_mode, is_of_kubelet(original, bundle.path)
    quota, effective = scheduled.effective_request(parsed, grant, mode, in_pod=in_pod)
    if in_pod and quota.wait_seconds is not None:
        raise quota.refuse("wait", *NO_WAIT_IN_PODS)
    placed = placed if grant is None else grant.taken_out(placed)
    secret = original.variables.get(TICKET_VARIABLE, "")
    return ContainerRequest(quota, effective, parsed.terms, placed, parsed.pod, grant, secret)


def _describe(
    bundle: NewContainer, annotations: Mapping[str, str], pod: PodIdentity | None
) -> None:
    """Note the container's name, and its pod, for the log of a refusal."""
    name = container_names.name_from_spec(bundle.identity, bundle.path, annotations).name
    bundle.about["name"] = name
    if pod is not None:
        bundle.about["pod"] = TenantPod(
            namespace=pod.namespace, name=pod.name, uid=pod.uid, container=pod.container
        )


def _of_quota(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return what an operator set that a request could contain."""
    return {key: text for key, text in overrides.items() if key in KEYS}


def _maker_process(bundle: NewContainer) -> Process | None:
    """Return the process that makes the container; the end of the create finds one that is gone."""
    if not bundle.maker:
        return None
    return Process(bundle.maker, processes.start_time(bundle.maker) or 0, 0, bundle.maker)


def _cgroup(bundle: NewContainer, original: Spec, node: Node) -> str:
    """Return the cgroup of a container that its launcher is to bind; "" if the hook is."""
    if not bundle.binds or node.config.bind != LAUNCHER:
        return ""
    path = original.at("linux", "cgroupsPath")
    return expected_cgroup(path, bundle.identity, bundle.maker)


def _reserve(
    bundle: NewContainer,
    applicant: TenantIdentity,
    request: ContainerRequest,
    state: DaemonState,
    queue: Queue,
) -> TenantRecord:
    """Reserve what the container requests, where the node's terms and its pod allow it."""
    bundle.check()
    _refuse_second_maker(bundle, state.ledger)
    take_over_changed_driver(state.node)
    request.terms.max_per_request.refuse_above(
        request.quota, request.effective, request.placed.cards
    )
    if request.pod is not None:
        release_ended_of(request.pod, state)
        refuse_second_container(request.pod, request.quota, state)
    ticket = None
    if request.secret:
        ticket = shown_by_container(request.secret, state.ledger)
    try:
        record = reserve(applicant, request, state, ticket)
    except NoRoom as error:
        if not request.is_whole or applicant.claim:
            raise
        why = f"cannot be allocated: {error}"
        raise whole_cards_refused(request.quota, request.placed.cards, why) from error
    if ticket is not None:
        queue.note_start(ticket)
    return record


def _refuse_second_maker(bundle: NewContainer, ledger: Ledger) -> None:
    """Raise NoRoom while another runtime is at the same container.

    It may have mounted the pages by now: replaced, they would belong to no tenant, and the
    container that is bound in the end would have pages that the daemon does not know.
    """
    record = ledger.entries.get(bundle.key)
    if record is None or record.state != "reserved" or record.maker in (0, bundle.maker):
        return
    if not release.is_abandoned(record):
        raise NoRoom(
            f"container {record.title} is being created by process {record.maker}; wait for it, or "
            "end it"
        )


def _nothing(
    bundle: NewContainer,
    wanted: Spec,
    loaded: Spec,
    effective: EffectiveRequest | None,
    state: DaemonState,
) -> dict[str, Any]:
    """Take out what an earlier start put in, and note why the container got no GPU."""
    applicant = _applicant(bundle, wanted, state.node)
    state.in_start(lambda: release_earlier(applicant, state))
    if requests_gpu(wanted.annotations):
        wanted = edits.seen(wanted)  # else gpushare-hook would take it for one that came past us
    spec.store(bundle.bundle_fd, wanted, loaded)
    if effective is not None:
        notes = truncated_notes(effective.notes)
        record = replace(applicant.record("none"), why=effective.why, notes=notes)
        state.in_start(lambda: state.ledger.add(record))
        log(
            "tenant-not-allocated",
            tenant=bundle.key,
            id=bundle.identity,
            reason=effective.why,
            notes=notes,
            pod=record.of_pod,
        )
    return {"mode": "none", "key": bundle.key}


def _applicant(bundle: NewContainer, original: Spec, node: Node) -> TenantIdentity:
    annotations = trusted_annotations(bundle.path, original.annotations)
    name = container_names.name_from_spec(bundle.identity, bundle.path, annotations)
    return TenantIdentity(
        key=bundle.key,
        identity=bundle.identity,
        name=name.name,
        engine=name.engine,
        bundle=bundle.path,
        label=original.mount_label,
        owner=_root_of(original),
        pod=pod_of(annotations),
        labels=container_names.recorded_labels(annotations, node.config.labels),
        memory_max_bytes=_memory_max(original),
    )


def _memory_max(original: Spec) -> int:
    """Return the container's memory limit (OCI runtime spec, config-linux.md, Memory); 0: none."""
    limit = original.at("linux", "resources", "memory", "limit")
    return limit if isinstance(limit, int) and limit > 0 else 0


def _root_of(original: Spec) -> int:
    """Return the host's uid of the container's root: it opens the sources of its own mounts."""
    for mapping in original.entries("linux", "uidMappings"):
        if mapping.get("containerID") == 0 and isinstance(mapping.get("hostID"), int):
            return int(mapping["hostID"])
    return 0


def _edited(
    bundle: NewContainer,
    original: Spec,
    request: ContainerRequest,
    record: TenantRecord,
    state: DaemonState,
) -> Spec:
    """Return the spec with the cards of `record`; the image's loader cache names the libraries."""
    stripped = original if request.grant is None else request.grant.removed_from(original)
    with closing(ImageView(bundle.rootfs_fd)) as image:
        changes = container_edits.edits_of(stripped, image, record, state, bundle.check)
    if record.isolation == MPS:
        changes = container_edits.with_server(changes, original, record, state.node)
    if request.quota.numa == container_edits.BIND:
        cpuset = container_edits.numa_binding(original, record, state)
        changes = replace(changes, cpus=cpuset.cpus, mems=cpuset.mems)
    return edits.apply(original, changes, request.placed.taken)


# --- containers of one pod: a request that names none of them is for the first that makes it ---
#
# The allocation of an init container is released before the next container is created.

_MOST_PODS: Final = 4096  # pods; the one that was noted first is forgotten


def release_ended_of(pod: PodIdentity, state: DaemonState) -> None:
    """Release what containers of `pod` that are gone had: an init container is, before the next."""
    for record in _tenants_of(pod, state.ledger):
        if _is_gone(record, state.tenants):
            release.release_tenant(record.key, state, "the next container of its pod is made")


def refuse_second_container(pod: PodIdentity, quota: QuotaRequest, state: DaemonState) -> None:
    """Refuse a pod's request that names no container if another container of the pod has it.

    QuotaError. A container that was refused while the other ran stays refused after that.
    """
    value = quota.unnamed
    if value is None or not pod.sandbox:
        return
    holder = next(
        (record for record in _tenants_of(pod, state.ledger) if record.container != pod.container),
        None,
    )
    if holder is not None and _runs(holder):
        _note_refusal(pod, holder.container, state)
    had = state.refused_siblings.get(pod.sandbox, {}).get(pod.container, "")
    if holder is None and not had:
        return
    first = holder.container if holder is not None else had
    rule = f"names no container, and {first} of pod {pod} has it"
    raise QuotaError(str(value.source), value.shown, rule, _fix_naming(first, pod, quota, value))


def _note_refusal(pod: PodIdentity, holder: str, state: DaemonState) -> None:
    """Note that a container was refused what `holder` had, so that it does not get it later.

    Otherwise, whichever starts while the other is down would take its place. A restart of the
    daemon forgets it; its holder is in the ledger, and so it is refused to others again.
    """
    refused = state.refused_siblings
    refused.setdefault(pod.sandbox, {}).setdefault(pod.container, holder)
    if len(refused) > _MOST_PODS:
        del refused[next(iter(refused))]


def _fix_naming(first: str, pod: PodIdentity, quota: QuotaRequest, value: RequestedValue) -> str:
    """Return what to write so that one container is named, in the dialect of the request."""
    theirs = translate.container_selector(dialects.TABLES, value.source.name)
    if theirs:
        return f"use {theirs}: {first}"
    key = next(
        (key for key, other in quota.requested.items() if other.source == value.source), "memory"
    )
    return (
        f"use {scoped_name(first, key)}, and {scoped_name(pod.container, key)} if this one needs "
        "a share of a GPU too"
    )


def _tenants_of(pod: PodIdentity, ledger: Ledger) -> list[TenantRecord]:
    """Return the tenants of `pod` that have a part of a GPU."""
    records = ledger.entries.values()
    return [
        record for record in records if pod.sandbox == record.sandbox != "" and record.allocations
    ]


def _is_gone(record: TenantRecord, tenants: Tenants) -> bool:
    """Whether nothing of it runs, or ever will: what was to make it has ended before it did."""
    if record.state == "bound":
        return release.is_gone(record, tenants)
    return release.is_abandoned(record)


def _runs(record: TenantRecord) -> bool:
    pidfd = processes.open_pidfd(record.pid, record.starttime) if record.state == "bound" else None
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


# --- GPUSHARE_WAIT: a create waits for room, at most as long as its container requests ---
#
# Docker holds the container's lock meanwhile, so the time is short (quota/values.py, ShortWait).
# The create's own thread waits, never the decide thread. Few may wait at a time: each keeps a
# thread of those that all creates share.

_MOST_WAITING: Final = 16
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class WaitingCreate:
    """A create that waits, and its container."""

    name: str
    maker: int  # the process that makes the container; 0: not known
    quota: QuotaRequest
    cards: EngineCards | None
    check: Callable[[], None]  # raises once no client waits for the container
    # Has the client wait for so many seconds more, and with 0 as long as for any answer.
    waits: Callable[[float], None]


@contextmanager
def granted(waiting: WaitingCreate, state: DaemonState, queue: Queue) -> Iterator[str]:
    """Yield the secret of a ticket that was granted, "" if there was no room in time.

    A ticket that was not taken over in the block ends with it.
    """
    seconds = waiting.quota.wait_seconds or 0
    tickets = state.ledger.tickets.values()
    if sum(ticket.kind == "create" for ticket in tickets) >= _MOST_WAITING:
        yield ""
        return
    applicant = Applicant(waiting.name, 0, waiting.maker or os.getpid(), False, "create", seconds)
    source = TicketSource(_options(waiting.quota), {}, {}, _cards(waiting.cards, state.node))
    try:
        ticket, secret = state.decide.run(lambda: queue.take(applicant, source))
    except (NoRoom, QueueFull, TicketNotFound):
        yield ""
        return
    try:
        waiting.waits(seconds)
        until = time.monotonic() + seconds
        while (entry := state.ledger.tickets.get(ticket.id)) is not None and not entry.is_granted:
            waiting.check()
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_SECONDS)
        waiting.waits(0)
        yield secret if entry is not None and entry.is_granted else ""
    finally:
        if ticket.id in state.ledger.tickets:
            state.decide.run(lambda: queue.drop(ticket.id))


def _options(quota: QuotaRequest) -> dict[str, str]:
    """Return what is requested, by canonical key; a profile is in it as what it stands for."""
    values = {key: value.text for key, value in quota.requested.items() if key != WAIT}
    rest = {key: value for key, value in quota.requested.items() if key != PROFILE}
    if requests_memory(rest):
        values.pop(PROFILE, None)
    return values


def _cards(cards: EngineCards | None, node: Node) -> str:
    """Return the cards that the engine put into the spec, as `--gpus` names them."""
    if cards is None:
        return ""
    if cards.all_cards:
        return "all"
    by_minor = {card.minor: card.uuid for card in node.loaded().cards if card.instance is None}
    named = cards.devices or tuple(by_minor[minor] for minor in cards.minors if minor in by_minor)
    return f"device={','.join(named)}" if named else str(cards.count or 1)


class CheckpointRefused(UserError):
    """The container uses a GPU."""


def refuse_checkpoint(identity: str, ledger: Ledger) -> None:
    """Refuse the dump of a container with a GPU: it would end, and could not be restored."""
    for record in ledger.entries.values():
        if record.id == identity and record.allocations:
            raise CheckpointRefused(
                f"container {record.title} uses a GPU, and a checkpoint has no state of the "
                "driver. Let the program save its state itself."
            )
