# SPDX-License-Identifier: Apache-2.0
"""A model of how Kubernetes allocates consumable capacity, and of what a slice must satisfy.

Written from KEP-5075 and the behaviour of k8s.io/dynamic-resource-allocation (`structured`): a
request names some capacities; of the others the policy's default is consumed, without a policy all
of it. An amount is raised to `min` and to the next step, and refused above `max`. A device fits if
what all its claims consume does not exceed its capacity.

Seen with the real scheduler of 1.36.2, on one node: the counting of claims. Never: its
queue, several nodes, or another version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.kubernetes.api.slices import parse_quantity

Body = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IDENTIFIER = re.compile(r"([a-z0-9.-]+/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")


class DoesNotFit(Exception):
    """No device has the capacity."""


@dataclass
class ModelScheduler:
    """Allocates devices of one pool; `consumed` is by device and capacity."""

    devices: list[Body]
    consumed: dict[str, dict[str, int]] = field(default_factory=dict)

    def allocate(self, requests: Mapping[str, str]) -> Body:
        """Return a result for a request of capacities; DoesNotFit."""
        for device in self.devices:
            if device.get("taints"):
                continue
            taken = amounts(device, requests)
            if taken is None or not self._fits(device, taken):
                continue
            held = self.consumed.setdefault(device["name"], {})
            for name, amount in taken.items():
                held[name] = held.get(name, 0) + amount
            return {
                "request": "gpu",
                "driver": "gpu.gpushare.io",
                "pool": "n",
                "device": device["name"],
                "shareID": "9f1c9a7e-0000-4000-8000-000000000000",
                "consumedCapacity": {name: str(amount) for name, amount in taken.items()},
            }
        raise DoesNotFit

    def release(self, result: Body) -> None:
        """Take back what a result consumed."""
        held = self.consumed[result["device"]]
        for name, amount in result["consumedCapacity"].items():
            held[name] -= int(amount)

    def _fits(self, device: Body, taken: Mapping[str, int]) -> bool:
        held = self.consumed.get(device["name"], {})
        return all(
            held.get(name, 0) + amount <= parse_quantity(device["capacity"][name]["value"])
            for name, amount in taken.items()
        )


def amounts(device: Body, requests: Mapping[str, str]) -> dict[str, int] | None:
    """Return what a request consumes of each capacity; None if the policy forbids it."""
    if not set(requests) <= set(device["capacity"]):
        return None
    found = {}
    for name, capacity in device["capacity"].items():
        policy = capacity.get("requestPolicy")
        whole = parse_quantity(capacity["value"])
        if name not in requests:
            found[name] = parse_quantity(policy["default"]) if policy else whole
            continue
        amount = parse_quantity(requests[name])
        if policy:
            rounded = _rounded(amount, policy)
            if rounded is None:
                return None
            amount = rounded
        found[name] = amount
    return found


def _rounded(amount: int, policy: Body) -> int | None:
    if "validValues" in policy:
        return next(
            (one for one in map(parse_quantity, policy["validValues"]) if one >= amount), None
        )
    limits = {key: parse_quantity(text) for key, text in policy["validRange"].items()}
    rounded = max(amount, limits["min"])
    rounded += -(rounded - limits["min"]) % limits["step"]
    return rounded if rounded <= limits["max"] else None


def check_device(device: Body) -> None:
    """Assert what the API server validates of a device, and schemas do not say."""
    assert _NAME.fullmatch(device["name"])
    named = [*device["attributes"], *device["capacity"]]
    assert len(named) <= 32
    assert all(_IDENTIFIER.fullmatch(name) for name in named), named
    for name, attribute in device["attributes"].items():
        assert len(attribute) == 1, name
        assert len(attribute.get("string", "").encode()) <= 64, name
        assert "version" not in attribute or _SEMVER.fullmatch(attribute["version"]), name
    for name, capacity in device["capacity"].items():
        if "requestPolicy" in capacity:
            check_policy(name, parse_quantity(capacity["value"]), capacity["requestPolicy"])


def check_policy(name: str, whole: int, policy: Body) -> None:
    """Assert that a request policy is valid for a capacity of `whole`."""
    default = parse_quantity(policy["default"])
    assert len({"validValues", "validRange"} & set(policy)) == 1, name
    if "validValues" in policy:
        values = [parse_quantity(text) for text in policy["validValues"]]
        assert values == sorted(values), name
        assert default in values, name
        assert values[-1] <= whole, name
        return
    least, step, most = (
        parse_quantity(policy["validRange"][key]) for key in ("min", "step", "max")
    )
    assert least <= default <= most <= whole, name
    assert least + step <= whole, name
    assert (default - least) % step == 0, name
    assert (most - least) % step == 0, name
