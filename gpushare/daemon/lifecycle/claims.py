# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: prepared for the kubelet, used by containers, and released. The decide thread's.

The ledger is written first, then the folder and the CDI spec, by which the kubelet has the folder
mounted into the containers that may use the claim. They are removed in the opposite order, so a
claim without a record has no CDI spec that a restart of gpushared does not remove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.core.log import log
from gpushare.daemon.lifecycle import bounds, release
from gpushare.daemon.lifecycle.scheduled import requests_of, require_mode
from gpushare.daemon.limits import driver_version
from gpushare.daemon.limits.burst import reclaim_burst, reclaim_rounds
from gpushare.daemon.placement.choose import find_obstacle
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.placement.request import (
    Bounds,
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
)
from gpushare.daemon.policy.compute import FIXED
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import ClaimRecord
from gpushare.errors import UserError
from gpushare.host.cdi_files import format_spec, make_run_folder, run_folder, write_spec
from gpushare.protocol.kubernetes import CDI_KIND, CLAIM_MOUNT, CLAIMS, PreparedClaim
from gpushare.quota.effective_request import EffectiveRequest
from gpushare.quota.request import QuotaRequest, RequestedValue
from gpushare.quota.request_policy import ResolvedRequest

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
        set_pods(claim.uid, claim.pods, state)
    return _publish(known, state)


def set_pods(uid: str, pods: tuple[str, ...], state: DaemonState) -> None:
    """Have `pods` be those that may use a claim; UnknownClaim, OSError."""
    known = state.ledger.claims.get(uid)
    if known is None:
        raise UnknownClaim(f"claim {uid} is not prepared on this node. Prepare it first")
    if known.pods != pods:
        state.ledger.put(replace(known, pods=pods))


def unprepare(uid: str, state: DaemonState) -> None:
    """Release a claim, if it is prepared; its containers that still run keep their parts. OSError.

    Their memory stays allocated to them until they end, and the rest is available at once.
    """
    known = state.ledger.claims.get(uid)
    _cdi_file(uid, state).unlink(missing_ok=True)
    folder = run_folder(state.node.config.run_dir, CLAIMS, uid)
    if folder.is_dir():
        folder.rmdir()
    if known is not None:
        state.ledger.release(known.file)
        log("claim-released", claim=uid, name=known.title)


def adopt(state: DaemonState) -> None:
    """Have the folders and CDI specs be those of the claims in the ledger, after a restart."""
    claims = state.ledger.claims
    known = {_CDI_FILE.format(uid=uid) for uid in claims}
    try:
        for file in state.node.config.cdi_dir.glob(_CDI_FILE.format(uid="*")):
            if file.name not in known:
                file.unlink(missing_ok=True)
        for claim in claims.values():
            _publish(claim, state)
    except OSError as error:
        log("claim-files-failed", "error", file=str(error.filename), error=str(error))


def place_container(
    uid: str, quota: QuotaRequest, effective: EffectiveRequest, state: DaemonState
) -> tuple[PlacedCard, ...]:
    """Return the part of each card of a claim that one of its containers gets. NoRoom.

    It gets as much of the claim's cores as of its memory, unless its own request sets them.
    """
    sets_cores = not _has_cores_of_claim(quota)
    claim = state.ledger.claims.get(uid)
    if claim is None:
        raise NoRoom(f"claim {uid} was released while its container was created")
    return tuple(
        _place(claim, uuid, effective, capacity, sets_cores=sets_cores)
        for uuid, capacity in sorted(
            _capacities(claim, state).items(), key=lambda one: one[1].card.index
        )
    )


def with_placed_cores(quota: QuotaRequest, placed: Sequence[PlacedCard]) -> QuotaRequest:
    """Return `quota` with the cores that a container got, where it got a part of the claim's."""
    if not _has_cores_of_claim(quota):
        return quota
    cores = max(one.cores for one in placed)
    value = RequestedValue(str(cores), cores, quota.requested["cores"].source)
    return replace(
        quota,
        cores=cores,
        requested={**quota.requested, "cores": value},
        before_operator={**quota.before_operator, "cores": value},
    )


def _has_cores_of_claim(quota: QuotaRequest) -> bool:
    cores = quota.requested.get("cores")
    # Those of a profile are for each container.
    return cores is not None and (cores.source.kind, cores.source.name) == ("claim", "cores")


def _place(
    claim: ClaimRecord,
    uuid: str,
    effective: EffectiveRequest,
    capacity: CardCapacity,
    *,
    sets_cores: bool,
) -> PlacedCard:
    """Return what a container gets of one card: no more than the claim has there."""
    part, where = claim.part(uuid), f"{claim.title}: card {capacity.card.index}"
    if capacity.health != "ok":
        raise NoRoom(f"{where} is unhealthy: {capacity.health}; see gpushare ls")
    if capacity.cordoned is not None:
        why = f" ({capacity.cordoned})" if capacity.cordoned else ""
        raise NoRoom(f"{where} is cordoned{why}; gpushare card uncordon, or delete the pod")
    if capacity.backend == MPS:
        fix = "gpushare places only requests for backend mps there, and no claims"
        raise NoRoom(f"{where} is in MPS mode; {fix}")
    if len(capacity.allocations) >= capacity.max_tenants:
        most = f"{capacity.max_tenants} ({capacity.max_tenants_source})"
        raise NoRoom(f"{where} has {len(capacity.allocations)} tenants of at most {most}")
    if effective.kind == "exclusive":
        return PlacedCard(capacity.card, capacity.card.memory_bytes, 100, whole=True)
    memory_bytes = min(part.quota_bytes, effective.memory_bytes or part.quota_bytes)
    cores = min(part.cores, effective.cores)
    if part.cores and not sets_cores:
        cores = max(1, part.cores * memory_bytes // part.quota_bytes)
    return PlacedCard(capacity.card, memory_bytes, cores, whole=False)


def _reserve(claim: ClaimRecord, state: DaemonState) -> ClaimRecord:
    state.node.loaded()
    state.ledger.integrity.refuse()
    driver_version.take_over_changed_driver(state)
    claim = _with_whole(claim, state)
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


def _with_whole(claim: ClaimRecord, state: DaemonState) -> ClaimRecord:
    """Return the claim with those of its devices marked that are all of a card.

    That takes all of the compute, or names no amount of it. Little memory may be left: that of
    non-tenants changes after the scheduler has seen it.
    """
    capacities = _capacities(claim, state)
    devices = []
    for device in claim.devices:
        part, capacity = claim.part(device.card), capacities[device.card]
        is_all = part.quota_bytes >= capacity.allocatable_bytes - capacity.card.little_bytes
        devices.append(replace(device, whole=is_all and part.cores in {0, 100}))
    return replace(claim, devices=tuple(devices))


def _capacities(claim: ClaimRecord, state: DaemonState) -> dict[str, CardCapacity]:
    """Return the cards of a claim by UUID; NoSuchCard."""
    found = {capacity.card.uuid: capacity for capacity in state.accounts.capacities()}
    for uuid in claim.cards:
        if uuid not in found:
            raise NoSuchCard(f"{claim.title}: card {uuid} does not exist; see gpushare ls")
    return {uuid: found[uuid] for uuid in claim.cards}


def _find_room(
    claim: ClaimRecord, requests: Mapping[str, ResolvedRequest], state: DaemonState
) -> None:
    """Raise NoRoom unless each card has room for the claim, and no tenant bursts into it."""
    for _ in reclaim_rounds():
        capacities = _capacities(claim, state)
        wanted = []
        for uuid, capacity in capacities.items():
            within = bounds.of_namespace(claim.namespace, requests[uuid], state)
            request = _placement(claim, uuid, within)
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
        if not reclaim_burst(sizes, tuple(capacities.values()), state):
            return


def _placement(claim: ClaimRecord, uuid: str, within: Bounds) -> PlacementRequest:
    """Return what a claim reserves of a card: its cores too, whatever its containers' policy."""
    part = claim.part(uuid)
    return PlacementRequest(
        whole=part.whole,
        memory_bytes=None if part.whole else part.quota_bytes,
        cores=part.cores,
        policy=FIXED,
        policy_is_set=True,
        devices=(uuid,),
        bounds=within,
        shows_holders=False,
    )


def _publish(claim: ClaimRecord, state: DaemonState) -> PreparedClaim:
    """Make the folder and the CDI spec of a claim, if they are not there; OSError."""
    folder = make_run_folder(state.node.config.run_dir, CLAIMS, claim.uid)
    edits = {
        "mounts": [
            {
                "hostPath": str(folder),
                "containerPath": f"{CLAIM_MOUNT}/{claim.uid}",
                "options": list(_MOUNT),
            }
        ]
    }
    document: dict[str, Any] = {
        "cdiVersion": _CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [{"name": claim.uid, "containerEdits": edits}],
    }
    write_spec(_cdi_file(claim.uid, state), format_spec(document))
    return PreparedClaim(folder=str(folder), cdi=[f"{CDI_KIND}={claim.uid}"])


def _cdi_file(uid: str, state: DaemonState) -> Path:
    return state.node.config.cdi_dir / _CDI_FILE.format(uid=uid)
