# SPDX-License-Identifier: Apache-2.0
"""The cards of this node as a scheduler needs them, from gpushared's `cards` and `status`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kubernetes.names import device_name


@dataclass(frozen=True)
class OfferedCard:
    """A card that this node has; `reason` says why nothing new may be placed on it."""

    uuid: str
    index: int
    model: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int  # of the card, without what the driver keeps
    schedulable_bytes: int  # of memory_bytes, what the scheduler may allocate
    schedulable_cores: int  # percent of the card, likewise
    max_tenants: int
    numa_node: int | None = None
    pcie_root: str = ""
    only_whole: bool = False  # the node's configuration allows no shares of it
    reason: str = ""  # "" (schedulable), or begins with a word: cordoned | unhealthy | ...

    @property
    def device(self) -> str:
        """The card's name in a ResourceSlice."""
        return device_name(self.uuid)

    @property
    def is_instance(self) -> bool:
        """Whether this is a MIG instance."""
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True)
class NodeCards:
    """The cards of a node, and what they have in common."""

    cards: Sequence[OfferedCard]
    mode: str = ""  # annotations | plugin | dra
    isolation: str = ""  # driver | interposer: what enforces a memory quota
    driver_version: str = ""  # "580.95.05"
    cuda_version: str = ""  # the newest that the driver supports, "13.0"


def node_cards(
    rows: Sequence[Mapping[str, Any]],
    status: Mapping[str, Any],
    pcie_roots: Mapping[str, str] | None = None,
) -> NodeCards:
    """Return the cards in `rows`, gpushared's CardStatus, with what its DaemonStatus adds."""
    roots = pcie_roots or {}
    return NodeCards(
        [_card(row, roots.get(row["uuid"], "")) for row in rows],
        mode=str(status.get("kubernetes_mode") or "annotations"),
        isolation=str(status.get("isolation") or ""),
        driver_version=str(status.get("driver_version") or ""),
        cuda_version=str(status.get("cuda_version") or ""),
    )


def _card(row: Mapping[str, Any], pcie_root: str) -> OfferedCard:
    return OfferedCard(
        uuid=row["uuid"],
        index=row["index"],
        model=row["model"],
        compute_capability=_capability(row["compute_capability"]),
        memory_bytes=row["memory_bytes"],
        schedulable_bytes=row["schedulable_bytes"],
        schedulable_cores=row["schedulable_cores"],
        max_tenants=row["max_tenants"],
        numa_node=row["numa_node"],
        pcie_root=pcie_root,
        only_whole=row["allowed_mode"] == "exclusive",
        reason="" if row["is_schedulable"] else row["schedulable_reason"] or "unschedulable",
    )


def _capability(text: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"([0-9]+)\.([0-9]+)", text)
    return (int(found[1]), int(found[2])) if found else None
