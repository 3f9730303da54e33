# SPDX-License-Identifier: Apache-2.0
"""What the API server validates of a device of a slice, and schemas do not say.

Written from KEP-5075 and the behaviour of k8s.io/dynamic-resource-allocation (`structured`): a
claim takes at least a policy's `min`, in steps, and never more than its `max`. The scheduler counts
what all claims consume against the capacity.
"""

from __future__ import annotations

import re
from typing import Any

from gpushare.kubernetes.api.slices import parse_quantity

Body = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IDENTIFIER = re.compile(r"([a-z0-9.-]+/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")


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
