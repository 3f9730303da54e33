# SPDX-License-Identifier: Apache-2.0
"""From another system's installation in a cluster to gpushare, in steps with a way back.

`systems` are tables of the systems, `inventory` is what a dump of the cluster has of one,
`settings` converts its settings, `steps` orders the steps, `plan` has all of it, and `report`
prints it. The keys of pods mean what gpushare/quota/dialects says.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.manifest.migration.inventory import MigrationMode, cluster_facts, take_inventory
from gpushare.manifest.migration.plan import MigrationPlan, make_plan
from gpushare.manifest.migration.systems import SYSTEMS
from gpushare.manifest.model import ManifestFile

__all__ = ["MigrationMode", "MigrationPlan", "plans"]


def plans(files: Sequence[ManifestFile], mode: MigrationMode | None = None) -> list[MigrationPlan]:
    """Return the plan for each system that the dump in `files` has; `mode` is that of the nodes.

    Without a mode, it is plugin if the cluster has admission policies, else annotations.
    """
    cluster = cluster_facts(files)
    found = [take_inventory(files, system) for system in SYSTEMS.values()]
    return [make_plan(one, cluster, mode) for one in found if not one.is_empty]
