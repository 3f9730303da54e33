# SPDX-License-Identifier: Apache-2.0
"""The devices of this node's ResourceSlices, and the quantities in them. Pure.

Source: resource.k8s.io/v1, "Device"; KEP-5075 (consumable capacity); KEP-5055 (taints);
k8s.io/apimachinery/pkg/api/resource, "Quantity" (`20Gi`, `40`, `500m`, `1e3`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

from gpushare.kubernetes.api.labels import label_value
from gpushare.kubernetes.api.server import Object
from gpushare.kubernetes.cards import NodeCards, OfferedCard

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
    found = [
        _device(card, node)
        for card in node.cards
        if card.schedulable_bytes >= 2 * MEMORY_STEP and (with_taints or not card.reason)
    ]
    return sorted(found, key=lambda device: str(device["name"]))


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
    found: Object = {"value": all_of_it}
    if card.only_whole:
        found["requestPolicy"] = {"default": all_of_it, "validValues": [all_of_it]}
    elif all_of_it != "0":
        valid = {"min": format_quantity(least), "step": format_quantity(step), "max": all_of_it}
        found["requestPolicy"] = {"default": default or all_of_it, "validRange": valid}
    return found


def _attributes(card: OfferedCard, node: NodeCards) -> Object:
    found: Object = {
        "uuid": {"string": card.uuid},
        "index": {"int": card.index},
        "model": {"string": card.model.encode()[:_STRING_BYTES].decode(errors="ignore")},
        "mig": {"bool": card.is_instance},
    }
    if node.isolation:
        found["isolation"] = {"string": node.isolation}
    versions = {
        "driverVersion": node.driver_version,
        "cudaDriverVersion": node.cuda_version,
        "cudaComputeCapability": ".".join(map(str, card.compute_capability or ())),
    }
    for name, text in versions.items():
        version = semantic_version(text)
        if version:
            found[name] = {"version": version}
    if card.numa_node is not None:
        found["numaNode"] = {"int": card.numa_node}
        found[_STANDARD + "numaNode"] = {"int": card.numa_node}
    if card.pcie_root:
        found[_STANDARD + "pcieRoot"] = {"string": card.pcie_root}
    return found


def semantic_version(text: str) -> str:
    """Return a version such as 580.95.05 or 13.0 by semver.org, 580.95.5; empty if it is none."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){0,2}", text):
        return ""
    numbers = [str(int(number)) for number in text.split(".")]
    return ".".join([*numbers, "0", "0"][:3])


def same_devices(wanted: list[Object], found: list[Object]) -> bool:
    """Whether the server has these devices; it may write a quantity in another way."""
    return [_plain(device) for device in wanted] == [_plain(device) for device in found]


def _plain(device: Object) -> Any:
    """Return a device without what the server adds, with its quantities as numbers."""
    taints = [{**taint, "timeAdded": ""} for taint in device.get("taints") or []]
    capacity = _numbers(device.get("capacity") or {})
    return {**device, "taints": taints, "capacity": capacity}


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return parse_quantity(value) if isinstance(value, str) else value


class BadQuantity(ValueError):
    """Not a quantity."""


def parse_quantity(text: str) -> int:
    """Return a quantity as a whole number, rounded away from zero as Kubernetes does."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise BadQuantity(f'"{text}" is not a quantity such as 20Gi or 40')
    sign, number, suffix = found.groups()
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
