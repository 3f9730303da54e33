# SPDX-License-Identifier: Apache-2.0
"""The cards of this node, from gpushared's `cards` and `status`.

A SchedulableCard is what the kubelet's plugins have of a card, also while gpushared restarts. An
OfferedCard is what the API server is told of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.protocol.kubernetes import device_name

if TYPE_CHECKING:
    from gpushare.kubernetes import StatusLog
    from gpushare.protocol.rows import CardRow

_INFORMATION: Final = "proc/driver/nvidia/gpus/*/information"
_UUID: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^Bus Location:\s*([0-9a-fA-F:.]+)\s*$", re.MULTILINE)
_ROOT: Final = re.compile(r"/sys/devices/(pci[0-9a-f]{4}:[0-9a-f]{2})/")
POLL_SECONDS: Final = 3.0
#: A restart of gpushared is over by then. After it, no card is schedulable: a pod would fail.
OUTAGE_SECONDS: Final = 10.0
OUTAGE: Final = "gpushared is not running"


@dataclass(frozen=True)
class SchedulableCard:
    """A card: its memory for containers, and how much of that the scheduler may hand out."""

    uuid: str
    memory_bytes: int
    schedulable_bytes: int  # 0 if no new container may use the card
    reason: str  # why it is 0
    numa_node: int | None
    allows_shares: bool = True  # false: whole cards only
    cores_left: int = 100  # percent that no container has reserved
    tenants: int = 0
    max_tenants: int = 64

    @property
    def tenants_left(self) -> int:
        """How many more containers it takes."""
        return max(0, self.max_tenants - self.tenants)

    @property
    def lacks(self) -> str:
        """What it has none of, "" if it has some of all: a share needs a tenant and compute."""
        return "tenant" if not self.tenants_left else "compute" if not self.cores_left else ""

    @property
    def is_closed(self) -> bool:
        """Whether it takes no other container."""
        return not self.schedulable_bytes or bool(self.lacks)

    @property
    def is_working(self) -> bool:
        """Whether the containers that have parts of it can use them: a cordoned card works."""
        return not self.reason or reason_word(self.reason) == "cordoned"


def reason_word(reason: str) -> str:
    """Return what a `schedulable_reason` begins with, a word of UNSCHEDULABLE; "": none."""
    return reason.partition(":")[0].split(" ")[0]


class CardFollower:
    """Asks gpushared for its cards every POLL_SECONDS."""

    def __init__(
        self, client: Client, log: StatusLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._log, self._clock = client, log, clock
        self._cards: tuple[SchedulableCard, ...] | None = None
        self._asked = self._answered = -POLL_SECONDS

    def poll(self) -> tuple[SchedulableCard, ...] | None:
        """Return the cards; None until gpushared has answered for the first time."""
        now = self._clock()
        if now - self._asked < POLL_SECONDS:
            return self._cards
        self._asked = now
        try:
            self._cards = _schedulable(self._client.cards())
        except UserError as error:
            self._log.note("gpushared", str(error))
            if self._cards is not None and now - self._answered >= OUTAGE_SECONDS:
                self._cards = tuple(
                    replace(card, schedulable_bytes=0, reason=OUTAGE) for card in self._cards
                )
        else:
            self._answered = now
            self._log.note("gpushared", f"gpushared reports {len(self._cards)} cards")
        return self._cards


def _schedulable(rows: Sequence[CardRow]) -> tuple[SchedulableCard, ...]:
    return tuple(
        SchedulableCard(
            uuid=row["uuid"],
            memory_bytes=row["memory_bytes"] - row["system_reserved_bytes"],
            schedulable_bytes=row["schedulable_bytes"] if row["is_schedulable"] else 0,
            reason=row["schedulable_reason"],
            numa_node=row["numa_node"],
            allows_shares=row["allowed_mode"] != "exclusive",
            cores_left=row["cores_available"],
            tenants=row["tenants"],
            max_tenants=row["max_tenants"],
        )
        for row in rows
    )


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
    """Return the cards in `rows`, gpushared's CardRow, with what its DaemonStatus adds."""
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
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)", text)
    return (int(match[1]), int(match[2])) if match else None


def pcie_roots(root: Path = Path("/")) -> dict[str, str]:
    """Return the PCIe root (`pci0000:5d`) of each card by UUID; unknown ones are missing.

    Source: NVIDIA driver README, "/proc interface"; Kubernetes, the attribute
    `resource.kubernetes.io/pcieRoot`.
    """
    roots = {}
    for file in root.glob(_INFORMATION):
        try:
            text = file.read_text("ascii", "replace")
        except OSError:
            continue
        uuid, address = _UUID.search(text), _ADDRESS.search(text)
        if uuid is None or address is None:
            continue
        device = root / "sys/bus/pci/devices" / address[1].lower()
        place = _ROOT.search("/" + str(device.resolve().relative_to(root.resolve())))
        if place is not None:
            roots[uuid[1]] = place[1]
    return roots
