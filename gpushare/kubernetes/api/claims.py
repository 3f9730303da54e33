# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: what the scheduler allocated of this driver to which pods, and its status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.events import timestamp
from gpushare.kubernetes.api.server import (
    CLOSE_SECONDS,
    ApiConflict,
    ApiForbidden,
    ApiNotFound,
    ApiServer,
    Object,
    WatchedObjects,
    path_of,
)
from gpushare.kubernetes.api.slices import (
    CORES,
    MEMORY,
    BadQuantity,
    parse_quantity,
)
from gpushare.protocol.kubernetes import DRIVER

if TYPE_CHECKING:
    pass


CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"
#: Of the parameters in a claim or DeviceClass: `kind: GpuShare`, and the keys of an annotation.
PARAMETERS_VERSION: Final = "gpu.gpushare.io/v1"
PARAMETERS_KIND: Final = "GpuShare"
PARAMETERS: Final = ("policy", "priority", "class", "weight", "memory-limit")
_STATUS_ATTEMPTS: Final = 3


class BadClaim(UserError):
    """A claim that cannot be prepared as it is; the message has the reason and the fix."""


@dataclass(frozen=True)
class AllocatedDevice:
    """A card, or a share of one, that the scheduler allocated to a request of a claim."""

    request: str  # of an alternative, the name of the request that it is for
    pool: str
    device: str
    share: str  # the scheduler's ID of the share; empty: the cluster does not share devices
    memory_bytes: int | None  # None: all of the card
    cores: int | None  # percent of the card; None: all of it
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class AllocatedClaim:
    """A claim, as far as this driver is concerned."""

    uid: str
    namespace: str
    name: str
    pods: tuple[str, ...]  # UIDs of the pods that may use it
    devices: tuple[AllocatedDevice, ...]  # empty: not allocated, or to another driver
    is_of_one_pod: bool = False  # made from a template: no other pod can join it


class ClaimReader:
    """Reads claims, and reports the status of their devices."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def read(self, namespace: str, name: str) -> AllocatedClaim:
        """Return the claim; ApiNotFound if it is gone, BadClaim if it cannot be prepared."""
        return claim_of(self._api.get(path_of(CLAIMS, name, namespace)))

    def report(self, claim: AllocatedClaim, message: str, *, is_ready: bool, now: str) -> None:
        """Set the condition Ready of the claim's devices of this driver; `now` is RFC 3339.

        The status is informational: a cluster that does not keep it, or does not permit it, is not
        a fault of the claim, and nothing is raised for that.
        """
        path = path_of(CLAIMS, claim.name, claim.namespace)
        for _ in range(_STATUS_ATTEMPTS):
            try:
                current = self._api.get(path)
                if current["metadata"]["uid"] != claim.uid:
                    return
                status = current.get("status") or {}
                devices = _with_ready(status, claim, message, is_ready, now)
                if devices != status.get("devices"):
                    body = {**current, "status": {**status, "devices": devices}}
                    self._api.replace(f"{path}/status", body)
            except ApiConflict:
                continue
            except (ApiForbidden, ApiNotFound):
                return
            else:
                return


def claim_of(body: Object) -> AllocatedClaim:
    """Return the claim in an object of `resource.k8s.io/v1`; BadClaim."""
    metadata, status = body["metadata"], body.get("status") or {}
    allocated = (status.get("allocation") or {}).get("devices") or {}
    configuration = allocated.get("config") or []
    reserved = status.get("reservedFor") or []
    return AllocatedClaim(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        pods=tuple(
            user["uid"]
            for user in reserved
            if user["resource"] == "pods" and not user.get("apiGroup")
        ),
        devices=tuple(
            _device(result, configuration)
            for result in allocated.get("results") or []
            if result["driver"] == DRIVER
        ),
        is_of_one_pod=any(
            owner.get("kind") == "Pod" and owner.get("controller")
            for owner in metadata.get("ownerReferences") or []
        ),
    )


def _device(
    result: Mapping[str, Any], configuration: Collection[Mapping[str, Any]]
) -> AllocatedDevice:
    request = str(result["request"])
    if result.get("adminAccess"):
        raise BadClaim(f"request {request}: adminAccess is not supported. Remove it")
    consumed = result.get("consumedCapacity") or {}
    return AllocatedDevice(
        request=request.partition("/")[0],
        pool=result["pool"],
        device=result["device"],
        share=result.get("shareID") or "",
        memory_bytes=_consumed(consumed, MEMORY),
        cores=_consumed(consumed, CORES),
        parameters=_parameters(request, configuration),
    )


def _consumed(consumed: Mapping[str, str], name: str) -> int | None:
    """Return an amount; the scheduler writes the name with or without the driver's domain."""
    text = consumed.get(name) or consumed.get(f"{DRIVER}/{name}")
    try:
        return None if text is None else parse_quantity(str(text))
    except BadQuantity as error:
        raise BadClaim(f"consumedCapacity {name}: {error}") from error


def _parameters(request: str, configuration: Collection[Mapping[str, Any]]) -> dict[str, str]:
    """Return the parameters for `request`: those of the class, and over them those of the claim.

    The entries are in this order already. Source: resource.k8s.io/v1, DeviceAllocationResult.
    """
    parameters: dict[str, str] = {}
    parent = request.partition("/")[0]  # of an alternative: `gpu/small`
    for entry in configuration:
        names, opaque = entry.get("requests") or [], entry.get("opaque") or {}
        applies = not names or request in names or parent in names
        if applies and opaque.get("driver") == DRIVER:
            parameters |= read_parameters(opaque.get("parameters"))
    return parameters


def read_parameters(parameters: Any) -> dict[str, str]:
    """Return the keys of opaque parameters as an annotation would have them; BadClaim."""
    if not isinstance(parameters, dict):
        raise BadClaim("parameters: not an object")
    kind = (parameters.get("apiVersion"), parameters.get("kind"))
    if kind != (PARAMETERS_VERSION, PARAMETERS_KIND):
        raise BadClaim(
            f"parameters: {kind[0]} {kind[1]} is unknown. "
            f"Use apiVersion: {PARAMETERS_VERSION}, kind: {PARAMETERS_KIND}"
        )
    texts = {}
    for key, value in parameters.items():
        if key in {"apiVersion", "kind"}:
            continue
        if key not in PARAMETERS:
            raise BadClaim(f"parameters: {key}: unknown. Use {', '.join(PARAMETERS)}")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadClaim(f"parameters: {key}: not text or a whole number. Quote it")
        texts[key] = str(value)
    return texts


def _with_ready(
    status: Mapping[str, Any], claim: AllocatedClaim, message: str, is_ready: bool, now: str
) -> list[Object]:
    """Return the device statuses with ours; those of other drivers stay as they are."""
    current = status.get("devices") or []
    kept = [entry for entry in current if entry.get("driver") != DRIVER]
    since = {
        _identity(entry): entry.get("conditions") or [] for entry in current if entry not in kept
    }
    value = "True" if is_ready else "False"
    for device in claim.devices:
        entry: Object = {"driver": DRIVER, "pool": device.pool, "device": device.device}
        if device.share:
            entry["shareID"] = device.share
        before: Mapping[str, Any] = next(
            (had for had in since.get(_identity(entry), []) if had.get("type") == "Ready"),
            {},
        )
        changed = before.get("lastTransitionTime") if before.get("status") == value else None
        entry["conditions"] = [
            {
                "type": "Ready",
                "status": value,
                "reason": "Prepared" if is_ready else "Unavailable",
                "message": message,
                "lastTransitionTime": changed or now,
            }
        ]
        kept.append(entry)
    return kept


def _identity(status: Mapping[str, Any]) -> tuple[str, str, str]:
    return status.get("pool", ""), status.get("device", ""), status.get("shareID", "")


# --- the claims that are prepared here, their status and their users ---
#
# The kubelet does not tell a driver of a pod that joins a prepared claim: only the claim's
# `status.reservedFor` does. A watch cannot select claims by node, so each has a watch of its own.
# Most claims are made from a template for one pod, which no other can join: they need none.
#
# The status, `status.devices` of a claim, is informational, so it has a thread of its own: a pod
# never waits for it. A report that the API server does not take in time is logged and dropped; the
# next change is reported again.

PREPARED: Final = "reserved on the node"
_CLOSE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class _Report:
    claim: AllocatedClaim
    fault: str  # empty: the devices are ready


class ClaimStatusReporter:
    """Writes the last report of each claim. Any thread may report."""

    def __init__(self, reader: ClaimReader, log: StatusLog) -> None:
        self._reader = reader
        self._log = log
        self._changed = threading.Condition()
        self._claims: dict[str, _Report] = {}  # as last reported
        self._waiting: dict[str, _Report] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="claim status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, claim: AllocatedClaim) -> None:
        """Report a claim as prepared."""
        self._report(_Report(claim, ""))

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Report a claim that gpushared refused; the kubelet tries again."""
        with self._changed:
            self._waiting[claim.uid] = _Report(claim, why)
            self._changed.notify_all()

    def forget(self, uid: str) -> None:
        """Take a claim that is no longer prepared: nothing of it is reported any more."""
        with self._changed:
            self._claims.pop(uid, None)
            self._waiting.pop(uid, None)

    def update(self, faults: Mapping[str, str]) -> None:
        """Report the claims on devices with a fault, by the device's name, and those without."""
        with self._changed:
            reports = list(self._claims.values())
        for report in reports:
            names = [device.device for device in report.claim.devices]
            fault = next((f"{name}: {faults[name]}" for name in names if faults.get(name)), "")
            if fault != report.fault:
                self._report(_Report(report.claim, fault))

    def close(self) -> None:
        """End; what was not written is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def _report(self, report: _Report) -> None:
        with self._changed:
            self._claims[report.claim.uid] = self._waiting[report.claim.uid] = report
            self._changed.notify_all()

    def _serve(self) -> None:
        while (report := self._take()) is not None:
            claim, fault = report.claim, report.fault
            now = timestamp(time.time())
            try:
                self._reader.report(claim, fault or PREPARED, is_ready=not fault, now=now)
            except UserError as error:
                self._log.note("claim status", f"claim {claim.namespace}/{claim.name}: {error}")

    def _take(self) -> _Report | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            return self._waiting.pop(next(iter(self._waiting)))


class PreparedClaims:
    """Follows prepared claims, and calls `changed`, on another thread, if the pods of one change.

    If `changed` raises a UserError, it is called again with the claim's next change.
    """

    def __init__(
        self,
        api: ApiServer,
        changed: Callable[[AllocatedClaim], None],
        log: StatusLog | None = None,
    ) -> None:
        self._api = api
        self._changed = changed
        self._status = ClaimStatusReporter(ClaimReader(api), log or StatusLog())
        self._status.start()
        self._lock = threading.Lock()
        self._followed: dict[str, _FollowedClaim] = {}

    def follow(self, claim: AllocatedClaim) -> None:
        """Take a claim that was prepared with `claim.pods`."""
        self._status.add(claim)
        if claim.is_of_one_pod:
            return
        with self._lock:
            if claim.uid in self._followed:
                return
            followed = self._followed[claim.uid] = _FollowedClaim(self._api, claim, self._changed)
        followed.watch.start()

    def refuse(self, claim: AllocatedClaim, why: str) -> None:
        """Take a claim that gpushared refused to prepare."""
        self._status.refuse(claim, why)

    def forget(self, uid: str) -> None:
        """Take a claim that is no longer prepared; an unknown one is fine."""
        self._status.forget(uid)
        with self._lock:
            followed = self._followed.pop(uid, None)
        if followed is not None:
            followed.watch.close()

    def update_health(self, faults: Mapping[str, str]) -> None:
        """Take the faults of devices, by name; devices without one are well."""
        self._status.update(faults)

    def close(self) -> None:
        """Follow no claims any more."""
        self._status.close()
        with self._lock:
            watches = [followed.watch for followed in self._followed.values()]
            self._followed.clear()
        for watch in watches:
            watch.end()
        until = time.monotonic() + CLOSE_SECONDS  # for all of them
        for watch in watches:
            watch.close(until - time.monotonic())


class _FollowedClaim:
    """One claim, and the pods that were last reported of it."""

    def __init__(
        self, api: ApiServer, claim: AllocatedClaim, changed: Callable[[AllocatedClaim], None]
    ) -> None:
        self._uid = claim.uid
        self._pods = set(claim.pods)
        self._changed = changed
        query = {"fieldSelector": f"metadata.name={claim.name}"}
        path = path_of(CLAIMS, namespace=claim.namespace)
        self.watch = WatchedObjects(api, path, query, changed=self._compare)

    def _compare(self) -> None:
        for body in self.watch.objects():
            claim = claim_of(body)
            if claim.uid == self._uid and set(claim.pods) != self._pods:
                self._changed(claim)
                self._pods = set(claim.pods)


class ClaimFollower(PreparedClaims):
    """Follows the claims that are prepared on this node, those of an earlier process too."""

    def __init__(self, api: ApiServer, claims: ClaimReader, client: Client, log: StatusLog) -> None:
        super().__init__(api, lambda claim: client.set_claim_pods(claim.uid, claim.pods), log)
        self._claims, self._client, self._log = claims, client, log
        threading.Thread(target=self._resume, name="claims", daemon=True).start()

    def _resume(self) -> None:
        """Follow the claims that an earlier process prepared."""
        try:
            rows = self._client.claims()
        except UserError as error:
            self._log.note("claims", f"prepared claims: {error}")
            return
        for row in rows:
            try:
                claim = self._claims.read(row["namespace"], row["name"])
                if claim.uid != row["claim"]:
                    continue  # another one of that name: the kubelet releases the old one
                if set(claim.pods) != set(row["pods"]):
                    self._client.set_claim_pods(claim.uid, claim.pods)
                self.follow(claim)
            except UserError as error:
                where = f"{row['namespace']}/{row['name']}"
                self._log.note(f"claim {row['claim']}", f"claim {where}: {error}")
