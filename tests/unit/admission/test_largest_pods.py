# SPDX-License-Identifier: Apache-2.0
"""The largest pods against the API server's limits of CEL: a count of units, not a time."""

from __future__ import annotations

from typing import Any, Final

import pytest
from packages.validating_policy import policy

from gpushare.quota.dialects import TABLES, KeyLocation
from tests.admission import Costs, measure
from tests.admission.cost import MATCH_CONDITIONS, PER_EXPRESSION, PER_POLICY
from tests.admission.rendered import translation
from tools.check.command import ROOT

from .test_validating import VALUES, pod

GUIDE: Final = ROOT / "docs/how-to/admission-policies.md"
CONTAINERS: Final = [f"{number:02}".ljust(46, "x") for number in range(64)]
#: Of all annotations of an object: apimachinery, TotalAnnotationSizeLimitB.
ANNOTATIONS_MAX: Final = 256 << 10
LABEL_MAX: Final = 63


def names(where: KeyLocation) -> list[str]:
    """Return every vendor's keys at a location."""
    rows = (row for one in TABLES.dialects for row in one.rows if row.where == where)
    return sorted({row.name for row in rows if row.pattern is None})


def of_all_vendors(containers: list[str]) -> dict[str, Any]:
    """Return a pod whose containers each have every vendor's limits and variables.

    It has every vendor's annotations and labels, these of the greatest length.
    """
    made = pod(dict.fromkeys(names("annotation"), "1"), tuple(containers))
    made["metadata"]["labels"] = dict.fromkeys(names("label"), "1" * LABEL_MAX)
    for container in made["spec"]["containers"]:
        container["resources"] = {"limits": dict.fromkeys(names("limit"), "1")}
        container["env"] = [{"name": name, "value": "1"} for name in names("env")]
    return made


def with_all_keys() -> dict[str, Any]:
    """Return a pod whose containers each have annotations of ours for all keys."""
    beside_memory = VALUES.keys() - {"memory-percent", "profile", "wait"}  # each is refused
    values = {name: found[0] for name, found in VALUES.items() if name in beside_memory}
    annotations = {
        f"gpushare.io/container.{name}.{key}": value
        for name in CONTAINERS
        for key, value in values.items()
    }
    return pod(annotations, tuple(CONTAINERS), runtimeClassName="gpushare")


def translated() -> dict[str, Any]:
    """Return a pod whose containers each have a record of every vendor's limits."""
    limits = "\n".join(f"limit {name}=1" for name in names("limit"))
    annotations = {
        f"gpushare.io/container.{name}.vendor": f"position {number}\n{limits}"
        for number, name in enumerate(CONTAINERS)
    }
    return pod(annotations, tuple(CONTAINERS), runtimeClassName="gpushare")


def annotations_size(body: dict[str, Any]) -> int:
    return sum(len(name) + len(text) for name, text in body["metadata"]["annotations"].items())


def check(costs: Costs, most: float) -> None:
    """Fail if an expression takes more than `most` of its limit, and unless the guide says it."""
    assert costs.highest < most * PER_EXPRESSION
    assert costs.total < most * PER_POLICY
    assert costs.conditions < most * MATCH_CONDITIONS
    shown = f"{costs.total / 1e6:.2f} | {costs.highest / 1e6:.2f}"
    assert shown in GUIDE.read_text(encoding="utf-8"), shown


@pytest.mark.parametrize("mode", ["annotations", "plugin"])
def test_three_limits_in_each_of_64_containers_take_a_small_part_of_the_limits(mode: str) -> None:
    made = pod({}, tuple(CONTAINERS))
    for container in made["spec"]["containers"]:
        limits = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
        container["resources"] = {"limits": dict.fromkeys(limits, "1")}
        container["env"] = [{"name": f"VARIABLE_{n}", "value": "text " * 10} for n in range(30)]
    costs = measure(translation(mode), made)
    assert costs.highest < 0.15 * PER_EXPRESSION
    assert costs.total < 0.03 * PER_POLICY


@pytest.mark.thorough
def test_every_vendors_keys_in_each_of_64_containers_are_translated() -> None:
    """In mode plugin, such a pod stays as it is."""
    check(measure(translation("annotations", nvidia=True), of_all_vendors(CONTAINERS)), 0.8)


@pytest.mark.thorough
@pytest.mark.parametrize("body", [with_all_keys(), translated()], ids=["ours", "translated"])
def test_64_containers_are_validated(body: dict[str, Any]) -> None:
    assert annotations_size(body) < ANNOTATIONS_MAX
    check(measure(policy("strict"), body), 0.5)
