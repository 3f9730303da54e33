# SPDX-License-Identifier: Apache-2.0
"""Kubernetes: what gpushared, gpushare-node and a container's spec have in common.

A node has one mode, which says who decides what a pod gets: the pod's annotations, the device
plugin, or dynamic resource allocation (DRA). In the last two modes, the scheduler decides, and the
kubelet mounts a folder of gpushared into the container. The name of the folder is what the
container gets; a pod cannot mount it without a hostPath volume.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypedDict

NodeMode: TypeAlias = Literal["annotations", "plugin", "dra"]
MODES: Final[tuple[NodeMode, ...]] = ("annotations", "plugin", "dra")
MODE_LABEL: Final = "gpushare.io/mode"
DRIVER: Final = "gpu.gpushare.io"  # of dynamic resource allocation
RESOURCE: Final = "gpushare.io/memory-gib"  # of the device plugin, with its default unit
CARD_RESOURCE: Final = "gpushare.io/card"  # extendedResourceName of the chart's DeviceClass
NODE_NAME: Final = "NODE_NAME"  # the variable in which a pod has the name of its node

#: A header for the exporter's token: the API server's proxy does not pass on Authorization.
TOKEN_HEADER: Final = "x-gpushare-token"  # noqa: S105 - in lower case, as the exporter has it

#: In run_dir: `allocations/UUID/BYTES`, of the device plugin, and where it is mounted.
ALLOCATIONS: Final = "allocations"
ALLOCATION_MOUNT: Final = "/run/gpushare/allocation"  # of more cards: with -1, -2, ... at its end

#: In run_dir: `claims/UID.REQUEST`, of a request of a prepared ResourceClaim, and where it is
#: mounted, by the same name.
CLAIMS: Final = "claims"
CLAIM_MOUNT: Final = "/run/gpushare/claim"
CDI_KIND: Final = "gpushare.io/claim"

CLAIM_PODS_MAX: Final = 256  # as the API server has it, status.reservedFor
CLAIM_DEVICES_MAX: Final = 32

#: Why a card has nothing for the scheduler, as `schedulable_reason` begins.
UNSCHEDULABLE: Final = ("unhealthy", "cordoned", "driver", "integrity", "mps")


class ClaimDevice(TypedDict):
    """One result of the scheduler for a claim: a part of a card."""

    request: str  # of the claim
    card: str  # UUID
    memory_bytes: int
    cores: int  # percent of the card; 0: none
    share: str  # the scheduler's shareID; empty: none


class PreparedClaim(TypedDict):
    """A claim that is reserved."""

    cdi: dict[str, str]  # the name of the CDI device by request of the claim


class ClaimStatus(TypedDict):
    """A prepared claim, and the containers that have a part of it."""

    claim: str  # UID
    namespace: str
    name: str
    pods: list[str]  # UIDs of the pods that may use it
    devices: list[ClaimDevice]
    parameters: dict[str, str]
    tenants: list[str]  # IDs of the containers


def device_name(uuid: str) -> str:
    """Return the name of a card in ResourceSlices, a DNS label: `card-5f3c...`."""
    return "card-" + uuid.lower().removeprefix("gpu-")


def is_served(mode: str, chart_mode: str) -> bool:
    """Whether a pod of gpushare-node of a chart in `chart_mode` ("": none) serves a node's mode."""
    return not chart_mode or mode in {"annotations", chart_mode}
