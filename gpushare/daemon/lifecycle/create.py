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
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpushare.daemon.core.log import log
from gpushare.daemon.freezer import expected_cgroup
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import (
    container_edits,
    release,
    remote,
    scheduled,
    tenant_names,
)
from gpushare.daemon.lifecycle.driver_loader import take_over_changed_driver
from gpushare.daemon.lifecycle.queue import (
    RoomForStarts,
    shown_by_container,
)
from gpushare.daemon.lifecycle.reserve import (
    TenantIdentity,
    follow_reservation,
    log_reserved,
    release_earlier,
    reserve,
    truncated_notes,
)
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger, ReservationLost
from gpushare.daemon.store.record import TenantRecord
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
    REMOTE,
    QuotaRequest,
    RequestedValue,
    to_record,
)
from gpushare.quota.request_policy import ResolvedRequest
from gpushare.settings import MPS

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


def create(
    bundle: NewContainer, state: DaemonState, room: RoomForStarts, servers: MpsSupervisor
) -> dict[str, Any]:
    """Give the container what it requests: `{"mode": MODE, "key": ...}`.

    MODE is "none", "shared", "exclusive" or "remote".

    QuotaError, NoRoom, NoSuchCard, NoDriver, SpecError, CdiError, OSError, CreateAbandoned,
    ReservationLost, MpsRefused: it gets nothing, and the bundle is as it was.
    """
    with state.creating.lock(bundle.key, bundle.check):
        bundle.check()
        _refuse_second_maker(bundle, state.ledger)  # and again by the decide thread, which reserves
        return _Creation(bundle, state, room, servers).run()


class _Creation:
    """One create: the container's spec, without what an earlier start put in, and its names."""

    def __init__(
        self, bundle: NewContainer, state: DaemonState, room: RoomForStarts, servers: MpsSupervisor
    ) -> None:
        self._bundle, self._state, self._room, self._servers = bundle, state, room, servers
        self._node, self._ledger = state.node, state.ledger
        self._loaded = spec.load(bundle.bundle_fd)
        self._original = edits.strip(self._loaded)
        self._in_pod = is_of_kubelet(self._original, bundle.path)
        self._annotations = trusted_annotations(bundle.path, self._original.annotations)
        self._pod = pod_of(self._annotations)
        name = tenant_names.name_from_spec(bundle.identity, bundle.path, self._annotations)
        self._name = name.name or bundle.identity[:12]
        pod = self._pod or PodIdentity("")
        self._record = TenantRecord(
            key=bundle.key,
            state="none",
            id=bundle.identity,
            name=name.name,
            engine=name.engine,
            bundle=bundle.path,
            namespace=pod.namespace,
            sandbox=pod.sandbox,
            container=pod.container,
            pod=pod.name,
            pod_uid=pod.uid,
            labels=tenant_names.recorded_labels(self._annotations, state.node.config.labels),
            created=time.time(),
            maker=bundle.maker,  # the end of the create finds one that is gone
            maker_starttime=(bundle.maker and processes.start_time(bundle.maker)) or 0,
        )

    def run(self) -> dict[str, Any]:
        bundle, state = self._bundle, self._state
        # Annotations are a user's: any container can be marked as a sandbox, with a card in it.
        if self._original.is_sandbox() and not injected_gpu.is_placed(self._original):
            return self._nothing(self._original, None)
        request = self._read_request()
        if request.effective.kind == "none":
            stripped = edits.apply(self._original, edits.Edits(), request.placed.taken)
            return self._nothing(stripped, request.effective)
        if bundle.is_restore:
            raise RestoreRefused(
                f"container {bundle.identity} requests a GPU, and a checkpoint has no state of the "
                "driver. Create the container instead."
            )
        if request.effective.kind == REMOTE:
            return self._remote(request)
        applicant = self._applicant(request)

        def reserve_now() -> TenantRecord:
            return state.in_start(lambda: self._reserve(applicant, request))

        needs_pages = request.effective.kind == "shared" and not applicant.label
        about = self._name, request.effective.class_ == "online"
        with state.mounts.claimed() if needs_pages else nullcontext():
            try:
                record = reserve_now()
            except NoRoom as error:
                record = self._room.reserve(error, about, reserve_now, bundle.waits)
        try:
            edited = self._edited(request, record)
            bundle.check()
            self._ledger.require(record)
            spec.store(bundle.bundle_fd, edited, self._loaded)
        except BaseException:
            log_reserved(record, self._node)
            state.decide.run(lambda: _release_failed(record, state))
            raise
        state.loop.soon(lambda: follow_reservation(record, state))
        binder = LAUNCHER if record.cgroup else "hook"
        covered = state.params.to_cover(self._original) if record.cgroup else {}
        return {"mode": request.effective.kind, "key": record.key, "bind": binder, **covered}

    def _applicant(self, request: ContainerRequest) -> TenantIdentity:
        bundle, original, node = self._bundle, self._original, self._node
        is_bound = bundle.binds and node.config.bind == LAUNCHER  # by its launcher
        record = replace(
            self._record,
            claim="" if request.grant is None else request.grant.claim,
            claim_requests=() if request.grant is None else request.grant.requests,
            cgroup=self._cgroup() if is_bound else "",
        )
        limit = original.at("linux", "resources", "memory", "limit")
        return TenantIdentity(
            record,
            label=original.mount_label,
            # The container's root opens the sources of its own mounts.
            owner=container_edits.mapped_uid(original, 0),
            shows_holders=node.config.read_group is None and not self._in_pod,
            uid=container_edits.host_uid(original),
            # OCI runtime spec, config-linux.md, Memory.
            memory_max_bytes=limit if isinstance(limit, int) and limit > 0 else 0,
        )

    def _cgroup(self) -> str:
        """Return the cgroup that the container will have; "": not known."""
        path = self._original.at("linux", "cgroupsPath")
        return expected_cgroup(path, self._bundle.identity, self._bundle.maker)

    def _read_request(self) -> ContainerRequest:
        """Return what the container requests, from whatever source, and the effective request."""
        bundle, node, pod = self._bundle, self._node, self._pod
        bundle.about["name"] = self._record.name
        if pod is not None:
            bundle.about["pod"] = TenantPod(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, container=pod.container
            )
        grant = scheduled.find_grant(self._original, pod, node, self._ledger, bundle.check)
        if grant is not None:
            self._original = grant.removed_from(self._original)
        original, placed = self._original, injected_gpu.InjectedGpu()
        if node.driver is not None:
            placed = injected_gpu.find(original, node.driver.files)
        overrides = node.overrides.of(self._record.settings_key)
        variables: Mapping[str, str] = original.variables
        if node.driver is None:
            variables = node.config.remote.across_nodes(variables)
        parsed = parse_spec_request(
            self._annotations,
            variables,
            of_pod=sandbox_annotations(self._annotations, bundle.path),
            cards=placed.cards,
            terms_of=node.config.terms_of,
            operator={key: text for key, text in overrides.items() if key in KEYS},
            scheduled=None if grant is None else grant.request,
        )
        if parsed.quota.remote is None and (parsed.quota.requested or bundle.marker == STRONG):
            node.loaded()  # nothing of ours can be in the way of what asks for nothing of ours
        quota, effective = scheduled.effective_request(
            parsed, grant, node.config.kubernetes_mode, in_pod=self._in_pod
        )
        secret = original.variables.get(TICKET_VARIABLE, "")
        return ContainerRequest(quota, effective, parsed.terms, placed, parsed.pod, grant, secret)

    def _reserve(self, applicant: TenantIdentity, request: ContainerRequest) -> TenantRecord:
        """Reserve what the container requests, where the node's terms and its pod allow it."""
        state, cards = self._state, request.placed.cards
        self._bundle.check()
        _refuse_second_maker(self._bundle, self._ledger)
        take_over_changed_driver(self._node)
        request.terms.max_per_request.refuse_above(request.quota, request.effective, cards)
        if request.pod is not None:
            release_ended_of(request.pod, state)
            refuse_second_container(request.pod, request.quota, state.ledger)
        ticket = shown_by_container(request.secret, self._ledger) if request.secret else None
        try:
            record = reserve(applicant, request, state, ticket)
        except NoRoom as error:
            if not request.is_whole or applicant.record.claim:
                raise
            why = f"cannot be allocated: {error}"
            raise whole_cards_refused(request.quota, cards, why) from error
        if ticket is not None:
            self._room.queue.note_start(ticket)
        return record

    def _remote(self, request: ContainerRequest) -> dict[str, Any]:
        """Give the container an engine's libraries; nothing of this node is reserved."""
        bundle, original, state = self._bundle, self._original, self._state
        gpu = remote.find(request.quota, self._node)
        state.in_start(lambda: release_earlier(self._record, state))
        with closing(ImageView(bundle.rootfs_fd)) as image:
            changes, notes = gpu.edits(original, image, self._node)
        record = replace(
            self._record,
            cgroup=self._cgroup(),
            isolation=REMOTE,
            why=gpu.why,
            quota=to_record(request.quota.requested),
            notes=truncated_notes((*request.effective.notes, *notes)),
        )
        bundle.check()
        spec.store(bundle.bundle_fd, edits.apply(original, changes), self._loaded)
        state.in_start(lambda: self._ledger.add(record))
        log(
            "tenant-remote",
            **record.identity,
            server=gpu.name,
            address=gpu.server.address,
            notes=record.notes,
            pod=record.of_pod,
        )
        return {"mode": REMOTE, "key": bundle.key}

    def _nothing(self, wanted: Spec, effective: EffectiveRequest | None) -> dict[str, Any]:
        """Take out what an earlier start put in, and note why the container got no GPU."""
        bundle, state = self._bundle, self._state
        state.in_start(lambda: release_earlier(self._record, state))
        if requests_gpu(wanted.annotations):
            wanted = edits.seen(wanted)  # else gpushare-hook takes it for one that came past us
        spec.store(bundle.bundle_fd, wanted, self._loaded)
        if effective is not None:
            notes = truncated_notes(effective.notes)
            record = replace(self._record, cgroup=self._cgroup(), why=effective.why, notes=notes)
            state.in_start(lambda: self._ledger.add(record))
            log(
                "tenant-not-allocated",
                tenant=bundle.key,
                id=bundle.identity,
                reason=effective.why,
                notes=notes,
                pod=record.of_pod,
            )
        return {"mode": "none", "key": bundle.key}

    def _edited(self, request: ContainerRequest, record: TenantRecord) -> Spec:
        """Return the spec with the cards of `record`; the image's loader cache names libraries."""
        original, state = self._original, self._state
        with closing(ImageView(self._bundle.rootfs_fd)) as image:
            check = self._bundle.check
            editor = container_edits.ContainerEditor(original, image, record, state, check)
            changes = editor.edits()
        if record.isolation == MPS:
            changes = editor.with_server(changes, self._servers)
        return edits.apply(original, changes, request.placed.taken)


def _release_failed(record: TenantRecord, state: DaemonState) -> None:
    """Release a reservation whose container could not be set up, unless it is another's now."""
    with suppress(ReservationLost):
        state.ledger.require(record)
        release.release_tenant(record.key, state, "its container could not be set up")


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


# --- containers of one pod: a request that names none of them is for the first that makes it ---
#
# The allocation of an init container is released before the next container is created.


def release_ended_of(pod: PodIdentity, state: DaemonState) -> None:
    """Release what containers of `pod` that are gone had: an init container is, before the next."""
    for record in _tenants_of(pod, state.ledger):
        if release.is_gone(record, state.tenants):
            release.release_tenant(record.key, state, "the next container of its pod is made")


def refuse_second_container(pod: PodIdentity, quota: QuotaRequest, ledger: Ledger) -> None:
    """Raise QuotaError if another container of the pod has a request that names no container."""
    value = quota.unnamed
    if value is None or not pod.sandbox:
        return
    others = (record.container for record in _tenants_of(pod, ledger))
    first = next((container for container in others if container != pod.container), None)
    if first is None:
        return
    rule = f"names no container, and {first} of pod {pod} has it"
    raise QuotaError(str(value.source), value.shown, rule, _fix_naming(first, pod, quota, value))


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
