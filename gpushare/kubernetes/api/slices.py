# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices of this node: one pool, named as the node, that lists its cards.

Every change of a device raises the generation in all slices of the pool, and a consumer ignores a
pool until it has all slices of the highest generation. The slices stay when gpushare-node ends, so
that an upgrade does not take the cards from the scheduler; the kubelet deletes them about 30 s
after the driver has left it. Source: resource.k8s.io/v1, "ResourcePool".
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from gpushare.errors import UserError
from gpushare.kubernetes.api.labels import NODES, label_value
from gpushare.kubernetes.api.server import (
    ApiConflict,
    ApiExists,
    ApiNotFound,
    ApiServer,
    Object,
    path_of,
)
from gpushare.kubernetes.cards import NodeCards, OfferedCard
from gpushare.protocol.kubernetes import DRIVER

API_VERSION: Final = "resource.k8s.io/v1"
SLICES: Final = f"/apis/{API_VERSION}/resourceslices"
#: The most devices of a slice if any of them has a taint.
DEVICES_MOST: Final = 64
_NAME_CHARACTERS: Final = 253
_ATTEMPTS: Final = 5


class NoSharedDevices(UserError):
    """The cluster does not keep what makes a card shareable; the message has the fix."""


class SlicePublisher:
    """Keeps the slices of the node `name` equal to the cards that it is given."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.keeps_taints = True  # False: the server dropped them, and tainted cards are left out
        self._api = api
        self._node = name
        self._uid = ""
        self._written: list[Object] | None = None
        self._fault: NoSharedDevices | None = None
        #: The slices as sent and as kept, by name.
        self._echoes: dict[str, tuple[list[Object], list[Object]]] = {}

    def write(self, node: NodeCards) -> None:
        """Publish the cards of `node`, if they differ from those last published.

        ApiError: try again. NoSharedDevices: the cluster cannot, until `retry`.
        """
        if self._fault is not None:
            raise self._fault
        if self._wanted(node) != self._written:
            self._synchronize(node)

    def verify(self) -> None:
        """Have the next `write` compare with the server: the kubelet deletes slices, for example.

        To be called after a registration at the kubelet, and when a watch reports a change.
        """
        self._written = None
        self._uid = ""  # of a node that was deleted and has come back, it is another

    def retry(self) -> None:
        """Have the next `write` try again what the cluster could not do: it may be newer now."""
        self._fault = None

    def remove(self) -> None:
        """Delete all slices of this driver on this node; ApiError."""
        with contextlib.suppress(NoSharedDevices):  # then it has none
            for body in self._found():
                metadata = body["metadata"]
                self._api.delete(path_of(SLICES, metadata["name"]), metadata["uid"])
        self._written = None

    def _wanted(self, node: NodeCards) -> list[Object]:
        return devices_of(node, with_taints=self.keeps_taints)

    def _synchronize(self, node: NodeCards) -> None:
        left = _ATTEMPTS
        while True:
            left -= 1
            wanted = self._wanted(node)
            try:
                kept = self._publish(wanted)
            except (ApiConflict, ApiExists, ApiNotFound):
                if not left:
                    raise
                continue  # something else wrote them meanwhile: read again
            if kept is None or not self._has_lost(wanted, kept):
                self._written = wanted
                return

    def _publish(self, devices: list[Object]) -> list[Object] | None:
        """Bring the slices to `devices`; return what the server kept, None if nothing changed."""
        published = self._found()
        parts = [devices[at : at + DEVICES_MOST] for at in range(0, len(devices), DEVICES_MOST)]
        names = [self._name(number) for number in range(len(parts))]
        if self._is_current(published, names, parts):
            return None
        generation = 1 + max((_generation(one) for one in published), default=0)
        known = {one["metadata"]["name"]: one for one in published}
        for name, one in known.items():
            if name not in names:
                self._api.delete(path_of(SLICES, name), one["metadata"]["uid"])
        kept: list[Object] = []
        for name, part in zip(names, parts, strict=True):
            body = self._slice(name, part, generation, len(parts))
            if name in known:
                body["metadata"] = known[name]["metadata"]
                answer = self._api.replace(path_of(SLICES, name), body)
            else:
                answer = self._api.create(SLICES, body)
            self._echoes[name] = part, _devices(answer)
            kept += _devices(answer)
        return kept

    def _is_current(
        self, published: Sequence[Object], names: Sequence[str], parts: Sequence[list[Object]]
    ) -> bool:
        by_name = {body["metadata"]["name"]: body for body in published}
        return (
            set(by_name) == set(names)
            and len({_generation(body) for body in published}) <= 1
            and all(
                by_name[name]["spec"]["pool"]["resourceSliceCount"] == len(names)
                and self._has(name, part, _devices(by_name[name]))
                for name, part in zip(names, parts, strict=True)
            )
        )

    def _has(self, name: str, part: list[Object], published: list[Object]) -> bool:
        """Whether a slice has these devices, or what the server made of them before."""
        return same_devices(part, published) or self._echoes.get(name) == (part, published)

    def _has_lost(self, wanted: list[Object], kept: list[Object]) -> bool:
        """Whether the server dropped what must then be published in another way.

        An older server, or one with a gate off, drops fields that it does not know.
        """
        if any("allowMultipleAllocations" not in device for device in kept):
            self.remove()
            self._fault = NoSharedDevices(
                "the API server drops allowMultipleAllocations: this cluster cannot share a card. "
                "Set the feature gate DRAConsumableCapacity on the API server, the scheduler and "
                "the kubelets, upgrade to Kubernetes 1.36, or set kubernetes: {mode: plugin}"
            )
            raise self._fault
        had = any("taints" in device for device in wanted)
        if had and not any("taints" in device for device in kept):
            self.keeps_taints = False
            return True
        return False

    def _found(self) -> list[Object]:
        query = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self._node}"}
        try:
            return self._api.all_of(SLICES, query)[0]
        except ApiNotFound as error:
            raise NoSharedDevices(
                f"the cluster has no {API_VERSION}. Upgrade to Kubernetes 1.34 or newer, or set "
                "kubernetes: {mode: plugin}"
            ) from error

    def _slice(self, name: str, devices: list[Object], generation: int, count: int) -> Object:
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [self._owner()]},
            "spec": {
                "driver": DRIVER,
                "nodeName": self._node,
                "pool": {
                    "name": self._node,
                    "generation": generation,
                    "resourceSliceCount": count,
                },
                "devices": devices,
            },
        }

    def _owner(self) -> Object:
        """Return the reference by which the slices of a deleted node are deleted."""
        if not self._uid:
            self._uid = self._api.get(path_of(NODES, self._node))["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._uid}

    def _name(self, number: int) -> str:
        """Return the name of a slice. It is always the same, so a repeated create is found out."""
        tail = f"-{DRIVER}-{number}"
        if len(self._node) + len(tail) <= _NAME_CHARACTERS:
            return self._node + tail
        digest = hashlib.sha256(self._node.encode()).hexdigest()[:16]
        return self._node[: _NAME_CHARACTERS - len(tail) - 17].rstrip(".-") + f"-{digest}{tail}"


def _generation(body: Object) -> int:
    return int(body["spec"]["pool"]["generation"])


def _devices(body: Object) -> list[Object]:
    devices: list[Object] = body["spec"].get("devices") or []
    return devices


# --- the devices of this node's ResourceSlices, and the quantities in them. Pure ---
#
# Source: resource.k8s.io/v1, "Device"; KEP-5075 (consumable capacity); KEP-5055 (taints);
# k8s.io/apimachinery/pkg/api/resource, "Quantity" (`20Gi`, `40`, `500m`, `1e3`).

_QUANTITY: Final = re.compile(
    r"([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,3})?",
    re.ASCII,
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
MEMORY: Final = "memory"
CORES: Final = "cores"
TENANTS: Final = "tenants"
#: Grants of memory are multiples of this.
MEMORY_STEP: Final = 1 << 20
#: A taint's name is this and the reason why nothing is placed on the card.
TAINT_PREFIX: Final = "gpu.gpushare.io/"
_STRING_BYTES: Final = 64
_STANDARD: Final = "resource.kubernetes.io/"


def devices_of(node: NodeCards, *, with_taints: bool = True) -> list[Object]:
    """Return the devices of a node, by name.

    A card on which nothing new may be placed has a taint; without `with_taints` it is left out, as
    is a card without memory to schedule.
    """
    devices = [
        _device(card, node)
        for card in node.cards
        if card.schedulable_bytes >= 2 * MEMORY_STEP and (with_taints or not card.reason)
    ]
    return sorted(devices, key=lambda device: str(device["name"]))


def _device(card: OfferedCard, node: NodeCards) -> Object:
    device: Object = {
        "name": card.device,
        "allowMultipleAllocations": True,
        "attributes": _attributes(card, node),
        "capacity": _capacity(card),
    }
    if card.reason:
        key = TAINT_PREFIX + (label_value(card.reason.partition(":")[0]) or "unschedulable")
        device["taints"] = [{"key": key, "effect": "NoSchedule"}]
    return device


def _capacity(card: OfferedCard) -> Object:
    """Return what claims may take. A request that names no memory takes the whole card.

    One that names memory and no cores has no guaranteed compute, as an annotation has none.
    """
    memory = card.schedulable_bytes // MEMORY_STEP * MEMORY_STEP
    return {
        MEMORY: _amount(format_quantity(memory), MEMORY_STEP, MEMORY_STEP, card),
        CORES: _amount(str(card.schedulable_cores), 0, 1, card, default="0"),
        # As many claims as gpushared places tenants on the card: with more, pods would wait on a
        # node that refuses them.
        TENANTS: {
            "value": str(card.max_tenants),
            "requestPolicy": {"default": "1", "validValues": ["1"]},
        },
    }


def _amount(all_of_it: str, least: int, step: int, card: OfferedCard, default: str = "") -> Object:
    """Return a capacity of which a request takes `least` or some steps more.

    `default` is what one takes that names no amount; "": all.

    A policy is valid only if the capacity is at least one step; of nothing, a request that names
    no amount takes nothing.
    """
    capacity: Object = {"value": all_of_it}
    if card.only_whole:
        capacity["requestPolicy"] = {"default": all_of_it, "validValues": [all_of_it]}
    elif all_of_it != "0":
        valid = {"min": format_quantity(least), "step": format_quantity(step), "max": all_of_it}
        capacity["requestPolicy"] = {"default": default or all_of_it, "validRange": valid}
    return capacity


def _attributes(card: OfferedCard, node: NodeCards) -> Object:
    attributes: Object = {
        "uuid": {"string": card.uuid},
        "index": {"int": card.index},
        "model": {"string": card.model.encode()[:_STRING_BYTES].decode(errors="ignore")},
        "mig": {"bool": card.is_instance},
    }
    if node.isolation:
        attributes["isolation"] = {"string": node.isolation}
    versions = {
        "driverVersion": node.driver_version,
        "cudaDriverVersion": node.cuda_version,
        "cudaComputeCapability": ".".join(map(str, card.compute_capability or ())),
    }
    for name, text in versions.items():
        version = semantic_version(text)
        if version:
            attributes[name] = {"version": version}
    if card.numa_node is not None:
        attributes["numaNode"] = {"int": card.numa_node}
        attributes[_STANDARD + "numaNode"] = {"int": card.numa_node}
    if card.pcie_root:
        attributes[_STANDARD + "pcieRoot"] = {"string": card.pcie_root}
    return attributes


def semantic_version(text: str) -> str:
    """Return a version such as 580.95.05 or 13.0 by semver.org, 580.95.5; empty if it is none."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){0,2}", text):
        return ""
    numbers = [str(int(number)) for number in text.split(".")]
    return ".".join([*numbers, "0", "0"][:3])


def same_devices(wanted: list[Object], current: list[Object]) -> bool:
    """Whether the server has these devices; it may write a quantity in another way."""
    return [_plain(device) for device in wanted] == [_plain(device) for device in current]


def _plain(device: Object) -> Any:
    """Return a device without what the server adds, with its quantities as numbers."""
    taints = [{**taint, "timeAdded": ""} for taint in device.get("taints") or []]
    capacity = _numbers(device.get("capacity") or {})
    return {**device, "taints": taints, "capacity": capacity}


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return parse_quantity(value) if isinstance(value, str) else value


class BadQuantity(ValueError):
    """Not a quantity."""


def parse_quantity(text: str) -> int:
    """Return a quantity as a whole number, rounded away from zero as Kubernetes does."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BadQuantity(f'"{text}" is not a quantity such as 20Gi or 40')
    sign, number, suffix = match.groups()
    amount = Fraction(f"0{number}" if number.startswith(".") else number.rstrip("."))
    if suffix in _BINARY:
        amount *= 1 << _BINARY[suffix]
    elif suffix:
        amount *= Fraction(10) ** (_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))
    whole = -(-amount.numerator // amount.denominator)
    return -whole if sign == "-" else whole


def format_quantity(amount: int) -> str:
    """Return a number of bytes in the largest binary unit that is exact, as the server does."""
    for suffix, shift in reversed(_BINARY.items()):
        if amount and amount % (1 << shift) == 0:
            return f"{amount >> shift}{suffix}"
    return str(amount)
