# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes scheduler's allocation to a container, by what the kubelet mounted into it.

The kubelet mounts a folder of gpushared, whose name says what was allocated: for the device plugin
`<run_dir>/allocations/UUID/BYTES`, for a request of a prepared ResourceClaim
`<run_dir>/claims/UID.REQUEST`. No author of a pod can mount it without a hostPath volume, with
which they could mount the control socket as well. The folder is empty, and its mount is removed
from the spec.

A container may use a claim only if its pod is among those for which the claim is reserved, by the
UID that the engine writes over whatever the pod's author wrote.

A node has one mode, because two schedulers that do not know of each other would allocate the same
memory: what is for a node of another mode is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, cast

from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.daemon.lifecycle import bounds, release
from gpushare.daemon.lifecycle.driver_loader import take_over_changed_driver
from gpushare.daemon.limits import CardAccounts, reclaim_rounds
from gpushare.daemon.node import LoadedDriver, Node
from gpushare.daemon.placement.choose import find_obstacle
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.placement.request import (
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
)
from gpushare.daemon.policy import FIXED
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import (
    UID,
    ClaimRecord,
    unused_of_requests,
    unused_part,
    used_parts,
)
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.errors import UserError
from gpushare.host.cdi_files import format_spec, make_run_folder, run_folder, write_spec
from gpushare.oci.edits import MOUNTS
from gpushare.oci.request import SpecRequest
from gpushare.oci.spec import Spec
from gpushare.protocol.kubernetes import (
    ALLOCATION_MOUNT,
    ALLOCATIONS,
    CDI_KIND,
    CLAIM_MOUNT,
    CLAIMS,
    MODE_LABEL,
    ClaimDevice,
    ClaimStatus,
    NodeMode,
    PreparedClaim,
)
from gpushare.quota.annotations import PodIdentity
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS, read, request_from
from gpushare.quota.request import (
    COMPUTE_KEYS,
    Layer,
    QuotaRequest,
    RequestedValue,
    ScheduledAllocation,
    ValueSource,
)
from gpushare.quota.request_policy import (
    RequestPolicy,
    ResolvedRequest,
)
from gpushare.quota.size import exact_size
from gpushare.settings import MPS

_ALLOCATION: Final = re.compile(rf"{ALLOCATION_MOUNT}(-[0-9]+)?", re.ASCII)
_BYTES: Final = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
_UUID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_PLUGIN: Final = "device plugin"
#: Keys that request a card, or a part of one.
CARD_KEYS: Final = frozenset({"memory", "memory-percent", "profile", "count", "devices"})
# gpushare-node hears of a pod that joins a prepared claim from the API server, as the kubelet does.
_POD_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02
_DECIDES: Final[Mapping[NodeMode, str]] = {
    "annotations": "annotations of the pod request the GPU",
    "plugin": "the device plugin allocates GPUs",
    "dra": "ResourceClaims allocate GPUs",
}
#: How to get a GPU on a node of each mode.
_USE: Final[Mapping[NodeMode, str]] = {
    "annotations": "request the GPU with annotations",
    "plugin": "request a resource of the device plugin in the limits of the container",
    "dra": "request the GPU with a ResourceClaim",
}


class UnknownPod(NoRoom):
    """The claim is not reserved for the container's pod, as far as gpushared knows."""


@dataclass(frozen=True)
class SchedulerGrant:
    """The scheduler's allocation to a container, by some of the `mounts` of its spec."""

    mounts: tuple[int, ...]
    request: ScheduledAllocation
    claim: str = ""  # the UID of the ResourceClaim; "": it is the device plugin's
    requests: tuple[str, ...] = ()  # those of the claim that are the container's; empty: all

    def removed_from(self, spec: Spec) -> Spec:
        """Return `spec` without the mounts: what a container gets does not depend on its claim."""
        entries = enumerate(spec.entries(*MOUNTS))
        return spec.with_value(MOUNTS, [entry for at, entry in entries if at not in self.mounts])


class ClaimPart(NamedTuple):
    """What a claim has for one of its requests."""

    uid: str
    request: str


class CardPart(NamedTuple):
    """Memory of a card that the device plugin allocated."""

    card: str
    memory_bytes: int


def allocation_folder(uuid: str, memory_bytes: int, driver: LoadedDriver, config: Config) -> str:
    """Return the folder for an allocation of the device plugin, created if it is missing.

    NoSuchCard, QuotaError: no container could have it. OSError.
    """
    require_mode("plugin", config.kubernetes_mode, "allocation")
    card = driver.card(uuid)
    if card is None:
        raise NoSuchCard(f"card {uuid} does not exist; see gpushare ls")
    if memory_bytes > card.memory_bytes:
        rule = f"is more than the {exact_size(card.memory_bytes)} of card {card.index}"
        raise QuotaError("allocation", exact_size(memory_bytes), rule, "allocate less")
    return str(make_run_folder(config.run_dir, ALLOCATIONS, uuid, str(memory_bytes)))


def find_grant(
    spec: Spec, pod: PodIdentity | None, node: Node, ledger: Ledger, check: Callable[[], None]
) -> SchedulerGrant | None:
    """Return what the scheduler allocated to a container, None if it allocated nothing.

    QuotaError: more than one claim, different parts of cards, or an allocation for nodes of another
    mode. NoRoom: a claim that is not prepared here, or not reserved for the container's pod.

    The pod of a claim may not be known yet: then this waits, and calls `check` meanwhile.
    """
    mode, mounted = node.config.kubernetes_mode, dict(_mounted(spec, node.config))
    claims = [source for source in mounted.values() if isinstance(source, ClaimPart)]
    parts = [source for source in mounted.values() if isinstance(source, CardPart)]
    cards, sizes = {part.card for part in parts}, {part.memory_bytes for part in parts}
    # One container may have the same memory of several cards.
    is_alike = not claims and len(cards) == len(parts) and len(sizes) == 1
    is_one_claim = len(claims) == len(mounted) and len({claim.uid for claim in claims}) == 1
    if len(mounted) > 1 and not is_alike and not is_one_claim:
        rule = f"allocated {len(mounted)} different parts of cards to one container"
        fix = "use one resource of gpushare, or one claim, in each container"
        raise QuotaError("the scheduler", None, rule, fix)
    if not mounted:
        return None
    if parts:
        request = _plugin_request(parts)
        if mode != "plugin":
            memory = request.layer["memory"]
            raise of_another_mode(str(memory.source), memory.shown, "plugin", mode)
        return SchedulerGrant(tuple(mounted), request)
    uid = claims[0].uid
    if mode != "dra":
        raise of_another_mode("claim", uid, "dra", mode)
    claim = _claim_of(uid, pod, ledger, check)
    named = {one.request for one in claims} & {*claim.requests}
    requests = () if len(named) in {0, len(claim.requests)} else tuple(sorted(named))
    return SchedulerGrant(
        tuple(mounted), container_request(claim.of_requests(requests)), uid, requests
    )


def _mounted(spec: Spec, config: Config) -> Iterator[tuple[int, CardPart | ClaimPart]]:
    """Yield the number of each mount that allocates something, and what."""
    for number, mount in enumerate(spec.entries(*MOUNTS)):
        source, destination = mount.get("source"), mount.get("destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        folder = Path(source)
        if _ALLOCATION.fullmatch(destination):
            part = _part(folder, config)
            if part is not None:
                yield number, part
        elif (
            destination == f"{CLAIM_MOUNT}/{folder.name}"
            and folder.parent == run_folder(config.run_dir, CLAIMS)
            and UID.fullmatch(folder.name.partition(".")[0])
        ):
            uid, _, request = folder.name.partition(".")
            yield number, ClaimPart(uid, request)


def _part(folder: Path, config: Config) -> CardPart | None:
    """Return what a folder stands for, None if it is not one of gpushared."""
    uuid, size = folder.parent.name, folder.name
    if folder.parent.parent != run_folder(config.run_dir, ALLOCATIONS):
        return None
    if not _UUID.fullmatch(uuid) or not _BYTES.fullmatch(size):
        return None
    return CardPart(uuid, int(size))


def _plugin_request(parts: Sequence[CardPart]) -> ScheduledAllocation:
    """Return parts of the same size as a request: of compute, the device plugin allocates none."""
    cards, size = tuple(part.card for part in parts), parts[0].memory_bytes
    layer = {
        "devices": RequestedValue(",".join(cards), cards, ValueSource(_PLUGIN, "devices")),
        "memory": RequestedValue(exact_size(size), size, ValueSource(_PLUGIN, "memory")),
    }
    return ScheduledAllocation(layer, frozenset(COMPUTE_KEYS))


def _claim_of(
    uid: str, pod: PodIdentity | None, ledger: Ledger, check: Callable[[], None]
) -> ClaimRecord:
    """Return the claim that a container of `pod` may use; NoRoom."""
    deadline = time.monotonic() + _POD_SECONDS
    while True:
        claim = ledger.claims.get(uid)
        if claim is None:
            raise NoRoom(
                f"claim {uid} is not prepared on this node: the kubelet has released it, or has "
                "not prepared it again. Delete the pod if it does not start"
            )
        if pod is not None and pod.uid and pod.uid in claim.pods:
            return claim
        if pod is None or not pod.uid or time.monotonic() > deadline:
            whose = f"pod {pod}" if pod is not None else "this container, which is in no pod,"
            # The name of another namespace's claim is not the pod's to know.
            is_own = pod is not None and pod.namespace == claim.namespace
            named = claim.title if is_own else f"claim {uid}"
            raise UnknownPod(
                f"{named} is not reserved for {whose} as far as gpushared knows. If the claim "
                "names it in status.reservedFor, see that gpushare-node runs"
            )
        check()
        time.sleep(_POLL_SECONDS)


def effective_request(
    parsed: SpecRequest, grant: SchedulerGrant | None, mode: NodeMode, *, in_pod: bool
) -> tuple[QuotaRequest, EffectiveRequest]:
    """Return what a container requests, and gets, on a node of `mode`.

    QuotaError for a request by another mode's means. Outside of pods, a container on any node
    requests what it likes. A pod's request for compute alone refines what the scheduler allocated
    to another of its containers: this one gets nothing.
    """
    is_remote = parsed.quota.remote is not None
    if grant is not None or not in_pod or mode == "annotations" or is_remote:
        return parsed.quota, parsed.effective()
    if parsed.cards is not None:
        raise of_another_mode(parsed.cards.source, None, "annotations", mode)
    for key in sorted(CARD_KEYS & parsed.quota.requested.keys()):
        value = parsed.quota.requested[key]
        if value.source.kind not in {"default", "operator"}:
            raise of_another_mode(str(value.source), value.shown, "annotations", mode)
    why = f"the scheduler allocated no GPU to this container; to get one, {_USE[mode]}"
    quota = QuotaRequest(notes=parsed.quota.notes)
    return quota, EffectiveRequest("none", why, count=0, notes=quota.notes)


def require_mode(wanted: NodeMode, mode: NodeMode, subject: str) -> None:
    """Raise QuotaError unless a node of `mode` takes `subject`, which is for nodes of `wanted`."""
    if mode != wanted:
        rule = f"is for nodes on which {_DECIDES[wanted]}, and this one has kubernetes.mode: {mode}"
        raise QuotaError(subject, None, rule, f"set kubernetes.mode to {wanted}")


def of_another_mode(where: str, value: str | None, means: NodeMode, mode: NodeMode) -> QuotaError:
    """Return the error for a pod that requests by `means` on a node of `mode`."""
    rule = f"cannot be used on this node: {_DECIDES[mode]} here (kubernetes.mode: {mode})"
    fix = f"{_USE[mode]}, or select nodes with the label {MODE_LABEL}={means}"
    return QuotaError(where, value, rule, fix)


#: Canonical keys that the opaque configuration of a claim may set.
PARAMETERS: Final = ("policy", "priority", "class", "weight", "memory-limit")
# Cores are the scheduler's: a container may use fewer, and never add some.
_REFINABLE: Final = frozenset(COMPUTE_KEYS) - {"cores"}


def container_request(claim: ClaimRecord) -> ScheduledAllocation:
    """Return what a container of a claim may have of each card, at most. QuotaError."""
    parts = [claim.part(card) for card in claim.cards]
    size, cores = max(part.quota_bytes for part in parts), max(part.cores for part in parts)
    most = replace(parts[0], quota_bytes=size, cores=cores)
    return ScheduledAllocation(_claim_layer(claim, most), _REFINABLE)


def requests_of(claim: ClaimRecord, terms: RequestPolicy) -> dict[str, ResolvedRequest]:
    """Return what a claim requests of each card, by UUID, under a namespace's `terms`.

    QuotaError: a parameter that is unknown, invalid or above a maximum, or devices that no
    container could have.
    """
    if len({device.whole for device in claim.devices}) > 1:
        rule = "has whole cards and shares, and a container cannot have both"
        raise QuotaError(claim.title, None, rule, "request them in two claims")
    requests = {}
    for card in claim.cards:
        part = claim.part(card)
        if part.cores >= 100 and not part.whole:
            rule = f"has all of the compute of card {card}, but not all of its memory"
            fix = "request less than 100 cores, or all of the memory as well"
            raise QuotaError(claim.title, None, rule, fix)
        layer = _claim_layer(claim, part)
        terms.defaults.beside(ScheduledAllocation(layer, _REFINABLE)).fill(layer)
        quota = request_from(layer)
        effective = resolve_request(quota)
        terms.max_per_request.refuse_above(quota, effective)
        requests[card] = ResolvedRequest(quota, effective, terms)
    return requests


def _claim_layer(claim: ClaimRecord, part: CardAllocation) -> Layer:
    cards, size, cores = claim.cards, part.quota_bytes, part.cores
    layer = {"devices": RequestedValue(",".join(cards), cards, _claim_source("devices"))}
    if not part.whole:
        layer["memory"] = RequestedValue(exact_size(size), size, _claim_source("memory"))
        if cores:
            layer["cores"] = RequestedValue(str(cores), cores, _claim_source("cores"))
    for name, text in claim.parameters.items():
        if name not in PARAMETERS:
            fix = f"the parameters are {', '.join(PARAMETERS)}"
            raise QuotaError(str(_claim_source(name)), text, "is not a parameter of a claim", fix)
        layer[name] = read(name, _claim_source(name), text, KEYS)
    return layer


def _claim_source(name: str) -> ValueSource:
    return ValueSource("claim", name)


# --- ResourceClaims: prepared for the kubelet, used by containers, released ---
#
# The decide thread's. The ledger is written first, then the folder and the CDI spec, by which the
# kubelet has the folder mounted into the containers that may use the claim. They are removed in
# the opposite order: a claim without a record has no CDI spec that a restart does not remove.

_CDI_FILE: Final = "gpushare.io-claim-{uid}.json"
_CDI_VERSION: Final = "0.5.0"  # of mounts, and of a kind's domain in device names
_MOUNT: Final = ("rbind", "rprivate", "ro", "nosuid", "nodev", "noexec")


class ClaimChanged(UserError):
    """A prepared claim is prepared again with another grant."""


class UnknownClaim(UserError):
    """The claim is not prepared here."""


def prepare(claim: ClaimRecord, state: DaemonState) -> PreparedClaim:
    """Reserve what a claim has, and have the kubelet know it; the same grant again is fine.

    NoRoom, NoSuchCard, QuotaError, ClaimChanged: nothing was reserved. OSError: it may be reserved,
    and can be prepared or unprepared again.
    """
    require_mode("dra", state.node.config.kubernetes_mode, claim.title)
    known = state.ledger.claims.get(claim.uid)
    if known is None:
        known = _reserve(claim, state)
    elif not known.is_same_grant(claim):
        raise ClaimChanged(
            f"{claim.title} is prepared with other devices or parameters. Unprepare it first"
        )
    elif known.pods != claim.pods:
        set_pods(claim.uid, claim.pods, state.ledger)
    return _publish(known, state.node)


def set_pods(uid: str, pods: tuple[str, ...], ledger: Ledger) -> None:
    """Have `pods` be those that may use a claim; UnknownClaim, OSError."""
    known = ledger.claims.get(uid)
    if known is None:
        raise UnknownClaim(f"claim {uid} is not prepared on this node. Prepare it first")
    if known.pods != pods:
        ledger.put(replace(known, pods=pods))


def unprepare(uid: str, node: Node, ledger: Ledger) -> None:
    """Release a claim, if it is prepared; its containers that still run keep their parts. OSError.

    Their memory stays allocated to them until they end, and the rest is available at once.
    """
    known = ledger.claims.get(uid)
    _cdi_file(uid, node).unlink(missing_ok=True)
    for folder in run_folder(node.config.run_dir, CLAIMS).glob(f"{uid}.*"):
        folder.rmdir()
    if known is not None:
        ledger.release(known.file)
        log("claim-released", claim=uid, name=known.title)


def adopt(node: Node, ledger: Ledger) -> None:
    """Have the folders and CDI specs be those of the claims in the ledger, after a restart."""
    claims = ledger.claims
    known = {_CDI_FILE.format(uid=uid) for uid in claims}
    try:
        for file in node.config.cdi_dir.glob(_CDI_FILE.format(uid="*")):
            if file.name not in known:
                file.unlink(missing_ok=True)
        for claim in claims.values():
            _publish(claim, node)
    except OSError as error:
        log("claim-files-failed", "error", file=str(error.filename), error=str(error))


def place_container(
    record: TenantRecord,
    quota: QuotaRequest,
    effective: EffectiveRequest,
    ledger: Ledger,
    accounts: CardAccounts,
) -> tuple[PlacedCard, ...]:
    """Return the part of each card of its claim that the container of `record` gets. NoRoom.

    Unless its own request sets them, it gets the memory that the claim, or those of its requests
    that the container names, have left, and as much of their cores as of their memory.
    """
    sets_cores = not _is_of_claim("cores", quota)
    claim, names = ledger.claims.get(record.claim), record.claim_requests
    if claim is None:
        raise NoRoom(f"claim {record.claim} was released while its container was created")
    own, tenants, placed = claim.of_requests(names), ledger.entries.values(), []
    for one in sorted(_capacities(own, accounts).values(), key=lambda one: one.card.index):
        most, uuid = None, one.card.uuid
        if _is_of_claim("memory", quota):
            most = unused_part(claim, uuid, used_parts(uuid, tenants, one.policy)).quota_bytes
            if names:
                most = min(most, unused_of_requests(claim, uuid, tenants, names))
        placed.append(_place(own, effective, one, most, sets_cores=sets_cores))
    return tuple(placed)


def with_placed_cores(quota: QuotaRequest, placed: Sequence[PlacedCard]) -> QuotaRequest:
    """Return `quota` with the cores that a container got, where it got a part of the claim's."""
    if not _is_of_claim("cores", quota):
        return quota
    cores = max(card.cores for card in placed)
    value = RequestedValue(str(cores), cores, quota.requested["cores"].source)
    return replace(
        quota,
        cores=cores,
        requested={**quota.requested, "cores": value},
        before_operator={**quota.before_operator, "cores": value},
    )


def _is_of_claim(key: str, quota: QuotaRequest) -> bool:
    value = quota.requested.get(key)
    return value is not None and value.source.kind == "claim"


def _place(
    claim: ClaimRecord,
    effective: EffectiveRequest,
    capacity: CardCapacity,
    left_bytes: int | None,
    *,
    sets_cores: bool,
) -> PlacedCard:
    """Return what a container gets of one card: no more than the claim has there.

    `left_bytes` is what the claim has left, for a container without a request of its own.
    """
    part, where = claim.part(capacity.card.uuid), f"{claim.title}: card {capacity.card.index}"
    if capacity.health != "ok":
        raise NoRoom(f"{where} is unhealthy: {capacity.health}; see gpushare ls")
    if capacity.cordoned is not None:
        why = f" ({capacity.cordoned})" if capacity.cordoned else ""
        raise NoRoom(f"{where} is cordoned{why}; gpushare card uncordon, or delete the pod")
    if capacity.backend == MPS:
        fix = "gpushare places only requests for backend mps there, and no claims"
        raise NoRoom(f"{where} is in MPS mode; {fix}")
    if len(capacity.allocations) >= capacity.rule.max_tenants:
        most = capacity.rule.most_tenants
        raise NoRoom(f"{where} has {len(capacity.allocations)} tenants of at most {most}")
    if effective.kind == "exclusive":
        return PlacedCard(capacity.card, capacity.card.memory_bytes, 100, whole=True)
    memory_bytes = min(part.quota_bytes, effective.memory_bytes or part.quota_bytes)
    memory_bytes = min(memory_bytes, left_bytes or memory_bytes)
    cores = min(part.cores, effective.cores)
    if part.cores and not sets_cores:
        cores = max(1, part.cores * memory_bytes // part.quota_bytes)
    return PlacedCard(capacity.card, memory_bytes, cores, whole=False)


def _reserve(claim: ClaimRecord, state: DaemonState) -> ClaimRecord:
    state.node.loaded()
    state.ledger.integrity.refuse()
    take_over_changed_driver(state.node)
    claim = _with_whole(claim, state.accounts)
    requests = requests_of(claim, state.node.config.terms_of(claim.namespace))
    try:
        _find_room(claim, requests, state)
    except NoRoom:
        if not release.release_ended(state):
            raise
        _find_room(claim, requests, state)
    state.ledger.put(claim)
    log(
        "claim-prepared",
        claim=claim.uid,
        name=claim.title,
        cards=[device.card for device in claim.devices],
        memory_bytes=sum(device.memory_bytes for device in claim.devices),
        pods=list(claim.pods),
    )
    return claim


def _with_whole(claim: ClaimRecord, accounts: CardAccounts) -> ClaimRecord:
    """Return the claim with those of its devices marked that are all of a card.

    That takes all of the compute, or names no amount of it. Little memory may be left: that of
    non-tenants changes after the scheduler has seen it.
    """
    capacities = _capacities(claim, accounts)
    devices = []
    for device in claim.devices:
        part, capacity = claim.part(device.card), capacities[device.card]
        is_all = part.quota_bytes >= capacity.allocatable_bytes - capacity.card.little_bytes
        devices.append(replace(device, whole=is_all and part.cores in {0, 100}))
    return replace(claim, devices=tuple(devices))


def _capacities(claim: ClaimRecord, accounts: CardAccounts) -> dict[str, CardCapacity]:
    """Return the cards of a claim by UUID; NoSuchCard."""
    capacities = {capacity.card.uuid: capacity for capacity in accounts.capacities()}
    for uuid in claim.cards:
        if uuid not in capacities:
            raise NoSuchCard(f"{claim.title}: card {uuid} does not exist; see gpushare ls")
    return {uuid: capacities[uuid] for uuid in claim.cards}


def _find_room(
    claim: ClaimRecord, requests: Mapping[str, ResolvedRequest], state: DaemonState
) -> None:
    """Raise NoRoom unless each card has room for the claim, and no tenant bursts into it."""
    for _ in reclaim_rounds():
        capacities = _capacities(claim, state.accounts)
        wanted = []
        for uuid, capacity in capacities.items():
            within = bounds.of_namespace(claim.namespace, requests[uuid], state.node, state.ledger)
            part = claim.part(uuid)
            request = PlacementRequest(
                whole=part.whole,
                memory_bytes=None if part.whole else part.quota_bytes,
                cores=part.cores,
                policy=FIXED,  # its cores are reserved whatever its containers' policy
                policy_is_set=True,
                devices=(uuid,),
                bounds=within,
                shows_holders=False,
            )
            obstacle = find_obstacle(request, capacity)
            if obstacle is not None:
                raise NoRoom(
                    f"{claim.title}: card {capacity.card.index} {obstacle.text}; see gpushare ls"
                )
            wanted.append((capacity.card, request.wanted_of(capacity)))
            over = request.bounds.why_not_all(wanted)
            if over is not None:
                raise NoRoom(f"{claim.title}: {over.text}; see gpushare ps")
        sizes = {uuid: claim.part(uuid).quota_bytes for uuid in capacities}
        if not state.limits.reclaim(sizes, tuple(capacities.values())):
            return


def _publish(claim: ClaimRecord, node: Node) -> PreparedClaim:
    """Make the folders and the CDI spec of a claim, if they are not there; OSError.

    A device for each request: the kubelet gives a container those of the requests that it names.
    """
    devices = []
    for request in claim.requests:
        name = f"{claim.uid}.{request}"
        folder = make_run_folder(node.config.run_dir, CLAIMS, name)
        inside = f"{CLAIM_MOUNT}/{name}"
        mount = {"hostPath": str(folder), "containerPath": inside, "options": list(_MOUNT)}
        devices.append({"name": name, "containerEdits": {"mounts": [mount]}})
    document = {"cdiVersion": _CDI_VERSION, "kind": CDI_KIND, "devices": devices}
    write_spec(_cdi_file(claim.uid, node), format_spec(document))
    return PreparedClaim(
        cdi={request: f"{CDI_KIND}={claim.uid}.{request}" for request in claim.requests}
    )


def _cdi_file(uid: str, node: Node) -> Path:
    return node.config.cdi_dir / _CDI_FILE.format(uid=uid)


def claim_rows(ledger: Ledger) -> Iterator[ClaimStatus]:
    """Yield a row for each prepared claim."""
    for claim in ledger.claims.values():
        yield ClaimStatus(
            claim=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            pods=list(claim.pods),
            devices=[
                cast(ClaimDevice, {key: vars(device)[key] for key in ClaimDevice.__annotations__})
                for device in claim.devices
            ],
            parameters=dict(claim.parameters),
            tenants=[record.id for record in ledger.entries.values() if record.claim == claim.uid],
        )
