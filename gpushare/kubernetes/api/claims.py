# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: what the scheduler allocated of this driver, to which pods, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import UserError
from gpushare.kubernetes.api.devices import CORES, MEMORY, BadQuantity, parse_quantity
from gpushare.kubernetes.api.server import (
    ApiConflict,
    ApiForbidden,
    ApiNotFound,
    ApiServer,
    Object,
    path_of,
)
from gpushare.protocol.kubernetes import DRIVER

CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"
#: Of the parameters in a claim or DeviceClass: `kind: GpuShare`, and the keys of an annotation.
PARAMETERS_VERSION: Final = "gpu.gpushare.io/v1"
PARAMETERS_KIND: Final = "GpuShare"
PARAMETERS: Final = ("policy", "priority", "class", "weight", "memory-limit", "profile")
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
            one["uid"] for one in reserved if one["resource"] == "pods" and not one.get("apiGroup")
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
    found: dict[str, str] = {}
    parent = request.partition("/")[0]  # of an alternative: `gpu/small`
    for entry in configuration:
        names, opaque = entry.get("requests") or [], entry.get("opaque") or {}
        applies = not names or request in names or parent in names
        if applies and opaque.get("driver") == DRIVER:
            found |= read_parameters(opaque.get("parameters"))
    return found


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
    found = {}
    for key, value in parameters.items():
        if key in {"apiVersion", "kind"}:
            continue
        if key not in PARAMETERS:
            raise BadClaim(f"parameters: {key}: unknown. Use {', '.join(PARAMETERS)}")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadClaim(f"parameters: {key}: not text or a whole number. Quote it")
        found[key] = str(value)
    return found


def _with_ready(
    status: Mapping[str, Any], claim: AllocatedClaim, message: str, is_ready: bool, now: str
) -> list[Object]:
    """Return the device statuses with ours; those of other drivers stay as they are."""
    current = status.get("devices") or []
    kept = [one for one in current if one.get("driver") != DRIVER]
    since = {_identity(one): one.get("conditions") or [] for one in current if one not in kept}
    value = "True" if is_ready else "False"
    for device in claim.devices:
        one: Object = {"driver": DRIVER, "pool": device.pool, "device": device.device}
        if device.share:
            one["shareID"] = device.share
        before: Mapping[str, Any] = next(
            (had for had in since.get(_identity(one), []) if had.get("type") == "Ready"), {}
        )
        changed = before.get("lastTransitionTime") if before.get("status") == value else None
        one["conditions"] = [
            {
                "type": "Ready",
                "status": value,
                "reason": "Prepared" if is_ready else "Unavailable",
                "message": message,
                "lastTransitionTime": changed or now,
            }
        ]
        kept.append(one)
    return kept


def _identity(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one.get("pool", ""), one.get("device", ""), one.get("shareID", "")
