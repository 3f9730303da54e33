# SPDX-License-Identifier: Apache-2.0
"""Cards and containers as Kubernetes knows them, for a node whose exporter does not answer. Pure.

Only what the scheduler has allocated is known: claims in the mode `dra`, requests of
`gpushare.io/memory-...` in the mode `plugin`, which the scheduler counts for all cards together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpushare.errors import UserError
from gpushare.kubernetes.api.claims import AllocatedDevice, claim_of
from gpushare.kubernetes.api.server import Object
from gpushare.kubernetes.api.slices import (
    CORES,
    MEMORY,
    TAINT_PREFIX,
    TENANTS,
    BadQuantity,
    parse_quantity,
)
from gpushare.kubernetes.cluster import ClusterCard, ClusterContainer
from gpushare.protocol.kubernetes import DRIVER, RESOURCE
from gpushare.quota.errors import BadValue
from gpushare.quota.size import format_size, parse_size

_PREFIX: Final = "gpushare.io/"
_RESOURCE_PREFIX: Final = RESOURCE.rpartition("-")[0] + "-"
_ENDED: Final = ("Succeeded", "Failed")


class _Share(NamedTuple):
    """A card, or a share of one, that a claim has."""

    namespace: str
    claim: str
    device: AllocatedDevice


def unknown_card(node: str, index: int) -> ClusterCard:
    """Return a card of which no more is known than that it exists."""
    return ClusterCard(
        node=node,
        source="kubernetes",
        index=index,
        uuid="",
        model="",
        memory_bytes=None,
        allocated_bytes=None,
        burst_granted_bytes=None,
        non_tenant_bytes=None,
        available_bytes=None,
        cores_available=None,
        tenants=None,
        max_tenants=None,
        mode="",
        cordoned=False,
        health="",
    )


def labelled_cards(node: Object) -> list[ClusterCard]:
    """Return the cards of a node by its labels; the sizes only if all cards are of one model."""
    labels = node["metadata"].get("labels") or {}
    count, memory = (labels.get(f"{_PREFIX}gpu.{name}", "") for name in ("count", "memory"))
    model = labels.get(_PREFIX + "gpu.product", "")
    is_known = model != "mixed" and memory.isdecimal()
    name = node["metadata"]["name"]
    return [
        {
            **unknown_card(name, index),
            "model": model,
            "memory_bytes": int(memory) << 20 if is_known else None,
        }
        for index in range(int(count) if count.isdecimal() else 0)
    ]


def sliced_cards(
    node: str, slices: Sequence[Object], claims: Sequence[Object]
) -> list[ClusterCard]:
    """Return the cards in a node's ResourceSlices, with what `claims` have allocated of them.

    The sizes are those that the scheduler may allocate.
    """
    shares = list(_shares(node, claims))
    return [
        _sliced_card(node, device, [one.device for one in shares if one.device.device == name])
        for name, device in _devices(node, slices).items()
    ]


def _devices(node: str, slices: Sequence[Object]) -> dict[str, Object]:
    """Return the devices of the pool `node` by name, as of its newest generation."""
    specs = [one["spec"] for one in slices if one["spec"]["pool"]["name"] == node]
    newest = max((spec["pool"]["generation"] for spec in specs), default=0)
    return {
        device["name"]: device
        for spec in specs
        if spec["driver"] == DRIVER and spec["pool"]["generation"] == newest
        for device in spec.get("devices") or []
    }


def _sliced_card(node: str, device: Object, shares: Sequence[AllocatedDevice]) -> ClusterCard:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    memory, cores, most = (_capacity(capacity, name) for name in (MEMORY, CORES, TENANTS))
    taken = sum(memory if one.memory_bytes is None else one.memory_bytes for one in shares)
    taken_cores = sum(cores if one.cores is None else one.cores for one in shares)
    reasons = [
        str(taint["key"]).removeprefix(TAINT_PREFIX)
        for taint in device.get("taints") or []
        if str(taint.get("key")).startswith(TAINT_PREFIX)
    ]
    return {
        **unknown_card(node, _attribute(attributes, "index", "int", -1)),
        "uuid": _attribute(attributes, "uuid", "string", ""),
        "model": _attribute(attributes, "model", "string", ""),
        "memory_bytes": memory,
        "allocated_bytes": taken,
        "available_bytes": 0 if reasons else max(0, memory - taken),
        "cores_available": max(0, 100 - taken_cores),
        "tenants": len(shares),
        "max_tenants": most,
        "cordoned": "cordoned" in reasons,
        "health": ",".join(reason for reason in reasons if reason != "cordoned"),
    }


def _attribute(attributes: Mapping[str, Any], name: str, kind: str, missing: Any) -> Any:
    return attributes.get(name, {}).get(kind, missing)


def _capacity(capacity: Mapping[str, Any], name: str) -> int:
    return _quantity((capacity.get(name) or {}).get("value", "0"))


def _quantity(value: object) -> int:
    try:
        return parse_quantity(str(value))
    except BadQuantity:
        return 0


def _shares(node: str, claims: Iterable[Object]) -> Iterator[_Share]:
    for body in claims:
        try:
            claim = claim_of(body)
        except UserError:  # gpushare-node does not prepare it, and says why in an event
            continue
        for device in claim.devices:
            if device.pool == node:
                yield _Share(claim.namespace, claim.name, device)


def counted_memory(node: Object, pods: Sequence[Object]) -> str:
    """Return what the scheduler has allocated of a node's memory, for a message; may be empty."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}  # of no node: none
    sizes = {name: _unit_bytes(name) for name in allocatable if name.startswith(_RESOURCE_PREFIX)}
    total = sum(_quantity(allocatable[name]) * size for name, size in sizes.items())
    if not total:
        return ""
    taken = sum(row["quota_bytes"] or 0 for pod in pods for row in counted_containers(pod))
    return f"the scheduler has allocated {format_size(taken)} of {format_size(total)}"


def counted_containers(pod: Object) -> list[ClusterContainer]:
    """Return the containers of a pod that request the resource of the device plugin."""
    found = []
    for container in _containers(pod):
        limits = (container.get("resources") or {}).get("limits") or {}
        sizes = [
            _quantity(count) * _unit_bytes(name)
            for name, count in limits.items()
            if name.startswith(_RESOURCE_PREFIX)
        ]
        if sizes:
            row = _unknown_container(pod, container["name"])
            row["quota_bytes"] = sum(sizes)
            found.append(row)
    return found


def _unit_bytes(name: str) -> int:
    """Return the memory of one of a resource such as gpushare.io/memory-256mib; 0: unknown."""
    unit = name.removeprefix(_RESOURCE_PREFIX)
    try:
        return parse_size(unit if unit[:1].isdigit() else f"1{unit}")
    except BadValue:
        return 0


def claimed_containers(
    pod: Object, slices: Sequence[Object], claims: Sequence[Object]
) -> list[ClusterContainer]:
    """Return the containers of a pod that use claims of this driver, for each card of them."""
    namespace, node = pod["metadata"]["namespace"], pod["spec"]["nodeName"]
    names = {
        one["name"]: one.get("resourceClaimName")
        for one in [
            *(pod["spec"].get("resourceClaims") or []),
            *((pod.get("status") or {}).get("resourceClaimStatuses") or []),  # of templates
        ]
    }
    devices = _devices(node, slices)
    shares = [one for one in _shares(node, claims) if one.namespace == namespace]
    found = []
    for container in _containers(pod):
        uses = (container.get("resources") or {}).get("claims") or []
        for use in uses:
            for share in shares:
                request = use.get("request") or share.device.request
                if (share.claim, share.device.request) != (names.get(use["name"]), request):
                    continue
                device = devices.get(share.device.device, {})
                attributes = device.get("attributes") or {}
                memory = _capacity(device.get("capacity") or {}, MEMORY)
                quota = share.device.memory_bytes
                row = _unknown_container(pod, container["name"])
                row["index"] = _attribute(attributes, "index", "int", None)
                row["uuid"] = _attribute(attributes, "uuid", "string", "")
                row["quota_bytes"] = (memory or None) if quota is None else quota
                row["cores"] = share.device.cores
                found.append(row)
    return found


def annotated_containers(pod: Object) -> list[ClusterContainer]:
    """Return the containers of a pod with gpushare's annotations; the node decides their quota."""
    annotations = pod["metadata"].get("annotations") or {}
    keys = [key.removeprefix(_PREFIX) for key in annotations if key.startswith(_PREFIX)]
    names = {key.split(".")[1] for key in keys if key.startswith("container.")}
    everyone = any(not key.startswith("container.") for key in keys)
    containers = [one["name"] for one in _containers(pod)]
    if everyone and len(containers) > 1 and not names:
        return [_unknown_container(pod, "")]  # only the node knows which of them
    return [_unknown_container(pod, name) for name in containers if everyone or name in names]


def _containers(pod: Object) -> list[Object]:
    if (pod.get("status") or {}).get("phase") in _ENDED:
        return []
    spec = pod["spec"]
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _unknown_container(pod: Object, container: str) -> ClusterContainer:
    return {
        "namespace": pod["metadata"]["namespace"],
        "pod": pod["metadata"]["name"],
        "container": container,
        "id": "",
        "node": pod["spec"]["nodeName"],
        "source": "kubernetes",
        "index": None,
        "uuid": "",
        "used_bytes": None,
        "quota_bytes": None,
        "limit_bytes": None,
        "cores": None,
        "cores_used": None,
        "cores_source": "",
        "policy": "",
        "throttled": None,
        "isolation": "",
        "class": "",
        "priority": None,
        "forced_launches": None,
        "is_hung": False,
        "state": "",
    }
