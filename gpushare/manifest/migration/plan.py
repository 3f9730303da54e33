# SPDX-License-Identifier: Apache-2.0
"""The plan for one system: what it has, what that becomes, and the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.manifest.migration.inventory import (
    ClusterFacts,
    Inventory,
    MigrationMode,
    WorkloadKey,
)
from gpushare.manifest.migration.settings import FoundSetting, configuration, find_settings
from gpushare.manifest.migration.steps import VALUES_FILE, MigrationStep, StepPlanner
from gpushare.manifest.migration.systems import ComponentRole


@dataclass(frozen=True)
class NodeLabel:
    """A label of nodes, or an annotation: what it means to the system, and what becomes of it."""

    key: str
    values: Mapping[str, int]
    meaning: str
    then: str


@dataclass(frozen=True)
class MigrationPlan:
    """What a system has in the cluster, and the steps from it to gpushare.

    `values` are those of gpushare's chart.
    """

    inventory: Inventory
    cluster: ClusterFacts
    mode: MigrationMode
    translates: str
    labels: tuple[NodeLabel, ...]
    settings: tuple[FoundSetting, ...]
    values: Mapping[str, Any]
    steps: tuple[MigrationStep, ...]

    def replacement(self, role: ComponentRole) -> str:
        """Return what does the work of a component of the system, for people."""
        if role == "webhook":
            none = self.translates == "none"
            return "gpushare convert, for each manifest" if none else "the chart's admission policy"
        if role == "scheduler":
            counts = (
                "memory" if self.mode == "plugin" else "no GPU, so nodes refuse what is too much"
            )
            return f"the cluster's scheduler, which counts {counts}"
        return "gpushare-node, of the chart" if role == "device plugin" else VALUES_FILE


def make_plan(
    inventory: Inventory, cluster: ClusterFacts, mode: MigrationMode | None
) -> MigrationPlan:
    """Return the plan for the system of `inventory`."""
    translates = _translation(cluster)
    mode = mode or ("plugin" if translates != "none" else "annotations")
    settings = tuple(find_settings(inventory, cluster))
    values: dict[str, Any] = {"mode": mode, "admission": {"translate": translates}}
    alone = [one for one in inventory.workloads if _whole_by_shared_limit(inventory, one.keys)]
    if alone and mode == "annotations":
        values["admission"]["nvidia"] = True
    made = configuration(list(settings))
    if made:
        values["configuration"] = made
    steps = StepPlanner(inventory, mode, translates).steps()
    labels = tuple(_labels(inventory))
    return MigrationPlan(
        inventory, cluster, mode, translates, labels, settings, values, tuple(steps)
    )


def _translation(cluster: ClusterFacts) -> str:
    """Return the chart's admission.translate for the cluster: auto, v1beta1 or none."""
    if cluster.version is None or cluster.version >= (1, 36):
        return "auto"
    return "v1beta1" if cluster.version >= (1, 34) else "none"


def _whole_by_shared_limit(inventory: Inventory, keys: tuple[WorkloadKey, ...]) -> bool:
    shared = set(inventory.system.shared_limits)
    return bool(shared) and {one.key for one in keys if one.where == "limit"} <= shared


def _labels(inventory: Inventory) -> Iterator[NodeLabel]:
    found: dict[str, dict[str, int]] = {}
    rows = {}
    selected: set[str] = {key for one in inventory.objects for key in one.node_selector}
    for one in inventory.node_keys:
        row = one.word.row
        if one.where == "node label" or (row.where == "node annotation" and row.role == "setting"):
            counts = found.setdefault(one.key, {})
            counts[one.value] = counts.get(one.value, 0) + 1
            rows[one.key] = row
    for key, counts in found.items():
        then = rows[key].instead or "nothing"
        if rows[key].setting:
            then = f"stays in force: {then}"
        if key in selected and inventory.system.free_node_by_label:
            then = f"remove it from a node that moves; then {then}"
        yield NodeLabel(key, counts, rows[key].meaning, then)
