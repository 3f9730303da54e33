# SPDX-License-Identifier: Apache-2.0
"""What the scheduler of Kubernetes allocated to a container, by what the kubelet mounted into it.

The device plugin has the kubelet mount a folder of gpushared, whose name is the allocation:
`<run_dir>/allocations/UUID/BYTES`. No author of a pod can mount it without a hostPath volume, with
which they could mount the control socket as well. The folder is empty, and its mount is removed
from the spec.

A node has one mode, because two schedulers that do not know of each other would allocate the same
memory: a pod that requests a GPU by another mode's means is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare.config import Config
from gpushare.daemon.placement.request import NoSuchCard
from gpushare.daemon.state import LoadedDriver
from gpushare.oci.edits import MOUNTS
from gpushare.oci.injected_gpu import InjectedGpu
from gpushare.oci.request import SpecRequest
from gpushare.oci.spec import Spec
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT, ALLOCATIONS, MODE_LABEL, NodeMode
from gpushare.quota import (
    EffectiveRequest,
    QuotaError,
    QuotaRequest,
    RequestedValue,
    ScheduledAllocation,
    ValueSource,
    exact_size,
)
from gpushare.quota.request import COMPUTE_KEYS, SCHEDULED

_DESTINATION: Final = re.compile(rf"{ALLOCATION_MOUNT}(-[0-9]+)?", re.ASCII)
_BYTES: Final = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
_UUID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_PLUGIN: Final = "device plugin"
_CARDS: Final = frozenset({"memory", "memory-percent", "count", "devices"})
_DECIDES: Final[Mapping[NodeMode, str]] = {
    "annotations": "annotations of the pod request the GPU",
    "plugin": "the device plugin allocates GPUs",
    "dra": "ResourceClaims allocate GPUs",
}
_USE: Final[Mapping[NodeMode, str]] = {
    "annotations": "request the GPU with annotations",
    "plugin": "request a resource of the device plugin in the limits of the container",
    "dra": "request the GPU with a ResourceClaim",
}


@dataclass(frozen=True)
class PluginAllocation:
    """The same memory of each card; `mounts` are the numbers of its mounts in the spec."""

    mounts: tuple[int, ...]
    cards: tuple[str, ...]
    memory_bytes: int

    def scheduled(self) -> ScheduledAllocation:
        """Return it as a request: of compute the scheduler allocates nothing."""
        layer = {
            "devices": RequestedValue(
                ",".join(self.cards), self.cards, ValueSource(_PLUGIN, "devices")
            ),
            "memory": RequestedValue(
                exact_size(self.memory_bytes), self.memory_bytes, ValueSource(_PLUGIN, "memory")
            ),
        }
        return ScheduledAllocation(layer, frozenset(COMPUTE_KEYS))


def make_folder(uuid: str, memory_bytes: int, driver: LoadedDriver, config: Config) -> str:
    """Return the folder for an allocation, which is created if it is missing.

    NoSuchCard, QuotaError: no container could have it. OSError.
    """
    if config.kubernetes_mode != "plugin":
        rule = f"is for nodes on which {_DECIDES['plugin']}, and this one has kubernetes.mode: "
        rule += config.kubernetes_mode
        raise QuotaError("allocation", None, rule, "set kubernetes.mode to plugin")
    card = driver.card(uuid)
    if card is None:
        raise NoSuchCard(f"card {uuid} does not exist; see gpushare ls")
    if memory_bytes > card.memory_bytes:
        rule = f"is more than the {exact_size(card.memory_bytes)} of card {card.index}"
        raise QuotaError("allocation", exact_size(memory_bytes), rule, "allocate less")
    folder = _root(config, ALLOCATIONS)
    for name in ("", uuid, str(memory_bytes)):
        folder /= name
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)  # independent of the umask
    return str(folder)


def _root(config: Config, name: str) -> Path:
    """Return a folder of run_dir without links, as an engine writes a mount's source."""
    return Path(os.path.realpath(config.run_dir)) / name


def find_allocation(spec: Spec, config: Config) -> PluginAllocation | None:
    """Return what the device plugin allocated to a container, None if it allocated nothing.

    QuotaError for different parts of cards: a container has the same memory of each of its cards.
    """
    found = {
        number: part
        for number, mount in enumerate(spec.entries(*MOUNTS))
        if _DESTINATION.fullmatch(str(mount.get("destination")))
        and (part := _part(mount.get("source"), config)) is not None
    }
    cards = tuple(card for card, _ in found.values())
    sizes = {size for _, size in found.values()}
    if len(sizes) > 1 or len(set(cards)) < len(cards):
        rule = f"allocated {len(found)} different parts of cards to one container"
        raise QuotaError(_PLUGIN, None, rule, "request one resource of gpushare in each container")
    return PluginAllocation(tuple(found), cards, sizes.pop()) if sizes else None


def _part(source: object, config: Config) -> tuple[str, int] | None:
    """Return the card and the bytes that a folder of gpushared stands for."""
    if not isinstance(source, str):
        return None
    folder = Path(source)
    uuid, size = folder.parent.name, folder.name
    if folder.parent.parent != _root(config, ALLOCATIONS):
        return None
    if not _UUID.fullmatch(uuid) or not _BYTES.fullmatch(size):
        return None
    return uuid, int(size)


def without_mounts(placed: InjectedGpu, mounts: Sequence[int]) -> InjectedGpu:
    """Return `placed` with these mounts of the spec among what is taken out of it."""
    if not mounts:
        return placed
    taken = {**placed.taken, MOUNTS: sorted({*placed.taken.get(MOUNTS, ()), *mounts})}
    return replace(placed, taken=taken)


def effective_request(
    parsed: SpecRequest, mode: NodeMode, *, in_pod: bool
) -> tuple[QuotaRequest, EffectiveRequest]:
    """Return what a container requests, and gets, on a node of `mode`.

    QuotaError for a request by another mode's means. Outside of pods, a container on any node
    requests what it likes. A pod's request for compute alone refines what the scheduler allocated
    to another of its containers: this one gets nothing.
    """
    values = parsed.quota.requested.values()
    scheduled = next((value for value in values if value.source.kind in SCHEDULED), None)
    if scheduled is not None and mode != "plugin":
        raise _of_another_mode(str(scheduled.source), scheduled.shown, "plugin", mode)
    if scheduled is not None or not in_pod or mode == "annotations":
        return parsed.quota, parsed.effective()
    if parsed.cards is not None:
        raise _of_another_mode(parsed.cards.source, None, "annotations", mode)
    for key in _CARDS & parsed.quota.requested.keys():
        value = parsed.quota.requested[key]
        if value.source.kind not in {"default", "operator"}:
            raise _of_another_mode(str(value.source), value.shown, "annotations", mode)
    why = f"the scheduler allocated no GPU to this container; to get one, {_USE[mode]}"
    quota = QuotaRequest(notes=parsed.quota.notes)
    return quota, EffectiveRequest("none", why, count=0, notes=quota.notes)


def _of_another_mode(where: str, value: str | None, means: NodeMode, mode: NodeMode) -> QuotaError:
    rule = f"cannot be used on this node: {_DECIDES[mode]} here (kubernetes.mode: {mode})"
    fix = f"{_USE[mode]}, or select nodes with the label {MODE_LABEL}={means}"
    return QuotaError(where, value, rule, fix)
