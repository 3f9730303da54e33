# SPDX-License-Identifier: Apache-2.0
"""The conditions of an eviction, all known before a process is locked, and of a restore.

| not evicted | why |
|---|---|
| whole cards | no library in the container: a call blocks in the driver, and nothing is told |
| MIG instances, clients of an MPS server | the driver cannot (NVIDIA/cuda-checkpoint 42; CRIU) |
| managed memory | the driver cannot (CRIU, plugins/cuda/README) |
| processes that have shared memory | each has a copy of its own afterwards (580.159.04) |
| processes without the library | what they share is not known |
| paused or frozen | a frozen process answers no call of the driver |

Whether a process has managed or shared memory is its own claim. One that hides it loses what it
shares, and a neighbour only what the two share. One that forges it stays on its card, unless the
operator lets the driver decide: it refuses managed memory and leaves the process as it was (seen
on an H200 with 580.159.04).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.cards.driver_client import DriverError
from gpushare.daemon.eviction.checkpoint_client import why_no_moves, why_unsupported
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.limits import reclaim_rounds
from gpushare.daemon.node import Node
from gpushare.daemon.pages.status_page import opened
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.choose import find_obstacle
from gpushare.daemon.placement.model import Card, CardCapacity
from gpushare.daemon.placement.request import NoRoom, PlacementRequest, Rank
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import (
    CardAllocation,
    EvictedProcess,
    EvictionRecord,
    TenantRecord,
)
from gpushare.errors import UserError
from gpushare.quota.size import format_size
from gpushare.settings import MPS

#: Host memory that the driver takes beside the copy: page tables, and its own records.
_BESIDE_PERCENT: Final = 2


class CannotEvict(UserError):
    """The tenant is not evicted, and goes on as it was; the text says why."""


class CannotRestore(UserError):
    """The tenant is not restored, and stays as it was; the text says why."""


def refuse_unevictable(record: TenantRecord, state: DaemonState, *, forced: bool = False) -> None:
    """Raise CannotEvict for what is seen without looking at processes; any thread."""
    why = why_not(record, state, forced=forced)
    if why:
        raise CannotEvict(f"{record.title} cannot be evicted: {why}")


def why_not(record: TenantRecord, state: DaemonState, *, forced: bool = False) -> str:
    """Return why a tenant cannot be evicted, as far as that is seen without its processes."""
    if not record.allocations:
        return "it has no GPU"
    if record.state != "bound":
        return "it has not started yet"
    if record.eviction is not None:
        return _STATE_TEXTS[record.eviction.state]
    if fault := eviction_fault(state.node):
        return fault
    if not record.shared:
        return "it has whole cards, and no library that could ask for its restore"
    cards = [state.node.card(allocation.uuid) for allocation in record.allocations]
    if any(card is not None and card.instance is not None for card in cards):
        return "it has a MIG instance, which the driver cannot evict"
    if state.ledger.is_frozen(record.key):
        return f"it is paused or frozen; gpushare resume {record.title} first"
    uses = state.observed.usage.processes.get(record.key, ())
    if record.isolation == MPS or any(use.is_mps for _, use in uses):
        return "it uses an MPS server, whose clients the driver cannot evict"
    return why_not_claimed(record, state, forced=forced)


def eviction_fault(node: Node) -> str:
    """Return why no container of this node can be evicted, "" if they can."""
    if node.driver is None:
        return "there is no driver"
    if host_memory_bound(node) <= 0:
        return "evict.host_memory of gpushare.yaml is 0"
    return why_unsupported(node.driver.nvml.driver_version)


def why_not_claimed(record: TenantRecord, state: DaemonState, *, forced: bool) -> str:
    """Return why a tenant cannot be evicted by what its processes claim, "" if it can.

    Until they are locked, they can still share memory: it is asked again then.
    """
    pages = state.tenants.pages.get(record.key)
    if pages is None:
        return "its pages are lost; restart the container"
    claims = pages.claims()
    if not claims:
        return "none of its programs uses a card"
    if forced or not state.node.config.evict.believe_claims:
        return ""
    uses = [use for claim in claims for use in claim.held[: len(record.allocations)]]
    if any(use.kinds[abi.KIND_MANAGED] for use in uses):
        return f"it has managed memory (cudaMallocManaged), which the driver cannot evict. {_FORCE}"
    pid = next((claim.pid for claim in claims if claim.shares), 0)
    if pid:
        return (
            f"its process {pid} has shared GPU memory (CUDA IPC, exported or imported memory), and "
            "an eviction would end the sharing unnoticed. It can be evicted once that process "
            f"exits. {_FORCE}"
        )
    return ""


_FORCE: Final = "If that is not true: gpushare evict --force"

_STATE_TEXTS: Final[Mapping[str, str]] = {
    "evicting": "it is being evicted",
    "evicted": "it is evicted already",
    "restoring": "it is being restored",
    "failed": "an earlier eviction has failed (gpushare explain evicted)",
}


def new_eviction(
    record: TenantRecord, why: tuple[str, str], cgroups: Cgroups, state: DaemonState, *, held: bool
) -> EvictionRecord:
    """Return the record of an eviction; CannotEvict if host memory has no room for it.

    `why` is the cause, and the reason in words.
    """
    eviction = EvictionRecord(
        "evicting",
        time.time(),
        *why,
        driver_processes(record, cgroups, state),
        tuple(_card_bytes(record, number, state) for number in range(len(record.allocations))),
        tuple(allocation.uuid for allocation in record.allocations),
        held=held,
    )
    _refuse_without_memory(record, eviction, cgroups, state)
    return eviction


def driver_processes(
    record: TenantRecord, cgroups: Cgroups, state: DaemonState
) -> tuple[EvictedProcess, ...]:
    """Return the tenant's processes that use the driver, the oldest first; CannotEvict for none.

    They have registered in its pages; CannotEvict as well for one that only the driver lists.
    """
    usage, pages = state.observed.usage, state.tenants.pages.get(record.key)
    claims = () if pages is None else pages.claims()
    claimed = {(claim.pid, claim.starttime) for claim in claims}
    listed = {use.pid for _, use in usage.processes.get(record.key, ())}
    members = [
        process
        for process in processes.members(record.cgroup, record.pid, cgroups)
        if (process.namespaced_pid, process.starttime) in claimed or process.pid in listed
    ]
    if not members:
        raise CannotEvict(f"{record.title} cannot be evicted: none of its programs uses a card")
    for process in members:
        if (process.namespaced_pid, process.starttime) not in claimed:
            raise CannotEvict(
                f"{record.title} cannot be evicted: process {process.pid} uses the driver without "
                "the interposer library, so that nothing is known of memory that it shares"
            )
    members.sort(key=lambda process: (process.starttime, process.pid))
    return tuple(EvictedProcess(process.pid, process.starttime) for process in members)


def _card_bytes(record: TenantRecord, number: int, state: DaemonState) -> int:
    """Return what a tenant has of a card: by the driver, and where its figures are old by itself.

    A claim counts only up to the quota, or what the tenant may use above it.
    """
    allocation, pages = record.allocations[number], state.tenants.pages.get(record.key)
    driver_bytes = state.observed.usage.driver_bytes[record.key, allocation.uuid]
    if pages is None:
        return driver_bytes
    claimed, limit, _ = pages.use(number)
    return max(driver_bytes, min(claimed, max(limit, allocation.quota_bytes)))


def _refuse_without_memory(
    record: TenantRecord, eviction: EvictionRecord, cgroups: Cgroups, state: DaemonState
) -> None:
    needed = eviction.bytes * (100 + _BESIDE_PERCENT) // 100
    evicted = evicted_bytes(state.ledger, besides=record.key)
    bound = host_memory_bound(state.node)
    shown, why = format_size(needed), f"{record.title} cannot be evicted: "
    if evicted + eviction.bytes > bound:
        has = f", of which {format_size(evicted)} is in use" if evicted else ""
        raise CannotEvict(
            f"{why}it has {format_size(eviction.bytes)}, and evict.host_memory is "
            f"{format_size(bound)}{has}. Restore or stop another container, or raise the key"
        )
    available = machine_memory("MemAvailable")
    if needed > available:
        raise CannotEvict(
            f"{why}it needs {shown} of host memory, and this machine has "
            f"{format_size(available)} available"
        )
    least = least_memory((process.pid for process in eviction.processes), cgroups)
    if least is not None and needed > least.left_bytes:
        raise CannotEvict(
            f"{why}it needs {shown} of host memory, and the container's memory limit leaves "
            f"{format_size(least.left_bytes)} ({least.cgroup}). Raise the limit of the container"
        )


def evicted_bytes(ledger: Ledger, besides: str = "") -> int:
    """Return the host memory that evicted tenants have, or are about to; not that of `besides`."""
    return sum(
        record.eviction.bytes
        for record in ledger.entries.values()
        if record.eviction is not None and record.key != besides
    )


def host_memory_bound(node: Node) -> int:
    """Return how much host memory evicted tenants may have together."""
    bound = node.config.evict.host_memory_bytes
    return machine_memory("MemTotal") // 2 if bound is None else bound


# Evicted memory is anonymous memory of the tenant's own processes. It counts in their memory
# cgroup, whose limit would otherwise have the kernel kill them in the middle of an eviction.
# Sources: cgroup-v2.rst (memory.max, memory.current, memory.stat), cgroup-v1/memory.rst.

_MEMINFO: Final = Path("/proc/meminfo")
_UNIFIED: Final = "", "memory.max", "memory.current", "inactive_file"
_LEGACY: Final = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_NO_LIMIT: Final = 1 << 60  # of v1: a number of pages that is as good as none


class MemoryLimit(NamedTuple):
    """The memory that a cgroup has left."""

    cgroup: str
    left_bytes: int


def least_memory(pids: Iterable[int], cgroups: Cgroups) -> MemoryLimit | None:
    """Return the cgroup with the least memory left of all that `pids` are in; None: no limit.

    Memory of files that are not in use counts as left: the kernel takes it back first.
    """
    limits: dict[Path, MemoryLimit] = {}
    for pid in pids:
        paths = processes.cgroups_of(pid)
        for hierarchy, most, used, inactive in (_UNIFIED, _LEGACY):
            root = cgroups.directory(f"{hierarchy}:/")
            path = paths.get(hierarchy)
            if root is None or path is None:
                continue
            group = root / path.lstrip("/")
            while group not in limits and group != root.parent:
                left = _left_bytes(group, most, used, inactive)
                if left is not None:
                    limits[group] = MemoryLimit(str(group), left)
                group = group.parent
    return min(limits.values(), key=lambda limit: limit.left_bytes, default=None)


def _left_bytes(group: Path, most: str, used: str, inactive: str) -> int | None:
    """Return what a group has left, None if it has no limit."""
    try:
        limit = (group / most).read_text(encoding="ascii").strip()
        if limit == "max" or int(limit) >= _NO_LIMIT:
            return None
        taken = int((group / used).read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None  # the root of v2 has none of these files
    lines = (line.split() for line in stat.splitlines())
    idle = next((int(line[1]) for line in lines if line[0] == inactive), 0)
    return max(0, int(limit) - taken + min(idle, taken))


def machine_memory(name: str) -> int:
    """Return a figure of the machine's memory in bytes: MemTotal, or MemAvailable (proc(5)).

    The latter is what it has for new memory without swapping.
    """
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return 0


# The target of a restore, on the decide thread. A restore that fails for want of
# memory leaves a process that nothing restores any more (NVIDIA/cuda-checkpoint issue 44). So the
# ledger has the room first, burst memory of others is taken back for it, and then the driver's own
# figure of free memory is looked at.

#: Memory that a restore may take beside what was evicted: the driver rounds up.
BESIDE_BYTES: Final = 64 << 20


def restored_allocations(
    record: TenantRecord, to: str, state: DaemonState
) -> tuple[CardAllocation, ...]:
    """Return the allocations of a tenant where its cards have room for them; NoRoom.

    `to` is the UUID of the only card that it may be, "": its own cards, or another one if they have
    no room and the driver can move it. The caller records them before anything else is decided.
    """
    if to:
        return _on(record, (to,), state)
    try:
        return _on(record, [allocation.uuid for allocation in record.allocations], state)
    except NoRoom:
        for other in other_cards(record, state.node):
            try:
                return _on(record, (other.uuid,), state)
            except NoRoom:
                continue
        raise


def other_cards(record: TenantRecord, node: Node) -> list[Card]:
    """Return the cards to which a tenant could be moved, whatever their room."""
    return [
        card
        for card in node.loaded().cards
        if card.uuid not in {allocation.uuid for allocation in record.allocations}
        and not why_not_to(record, card, node)
    ]


def why_not_to(record: TenantRecord, card: Card, node: Node) -> str:
    """Return why a tenant can never be moved to `card`, "" if it can where that has room."""
    driver = node.loaded()
    why = why_no_moves(driver.nvml.driver_version)
    if why:
        return why
    if len(record.allocations) != 1:
        return f"it has {len(record.allocations)} cards, and only a container of one can be moved"
    if record.claim:
        return "Kubernetes has allocated its card (ResourceClaim)"
    own = driver.card(origin(record, 0))
    if own is None or (own.model, own.capability) != (card.model, card.capability):
        model = "a card that is gone" if own is None else own.model
        return f"its memory is of {model}, and card {card.index} is {card.model}"
    if card.instance is not None or card.is_divided:
        return f"card {card.index} is divided into MIG instances"
    if not has_card_node(record, card):
        return f"it cannot open the device node of card {card.index} (evict.moves)"
    return ""


def origin(record: TenantRecord, number: int) -> str:
    """Return the UUID of the card that the memory of allocation `number` came from."""
    if record.eviction is None or number >= len(record.eviction.cards):
        return record.allocations[number].uuid
    return record.eviction.cards[number]


def _on(
    record: TenantRecord, uuids: Sequence[str], state: DaemonState
) -> tuple[CardAllocation, ...]:
    """Return the allocations on these cards, by the tenant's card number; NoRoom."""
    wanted = {
        uuid: max(allocation.quota_bytes, record.evicted_bytes(number))
        for number, (uuid, allocation) in enumerate(zip(uuids, record.allocations, strict=True))
    }
    for _ in reclaim_rounds():
        capacities = state.queue.open_to(record.key, state.accounts.capacities(), rank_of(record))
        by_uuid = {capacity.card.uuid: capacity for capacity in capacities}
        for number, uuid in enumerate(uuids):
            if uuid not in by_uuid:
                raise NoRoom(f"the card of {record.title} is gone")
            why = why_no_room(record, number, by_uuid[uuid])
            if why:
                raise NoRoom(why)
        if not state.limits.reclaim(wanted, capacities):
            break
    return tuple(
        replace(allocation, uuid=uuid)
        for uuid, allocation in zip(uuids, record.allocations, strict=True)
    )


def restore_request(record: TenantRecord, node: Node) -> PlacementRequest:
    """Return what the queue has to find for a tenant: its own cards, or one it can be moved to."""
    own = [allocation.uuid for allocation in record.allocations]
    others = [card.uuid for card in other_cards(record, node)]
    parts = [_wanted(record, number) for number in range(len(own))]
    most = max(parts, key=lambda part: part.memory_bytes or 0)
    return replace(most, count=len(own), devices=(*own, *others))


def why_no_room(record: TenantRecord, number: int, capacity: CardCapacity) -> str:
    """Return why a card has no room for the tenant's allocation `number`, "" if it has."""
    request = _wanted(record, number)
    obstacle = find_obstacle(request, capacity)
    if obstacle is None:
        return ""
    return f"card {capacity.card.index} cannot take {record.title} ({request}): it {obstacle.text}"


def _wanted(record: TenantRecord, number: int) -> PlacementRequest:
    allocation = record.allocations[number]
    return PlacementRequest(
        memory_bytes=max(allocation.quota_bytes, record.evicted_bytes(number)),
        cores=allocation.cores,
        policy=record.policy,
        policy_is_set=record.is_set("policy"),
        rank=rank_of(record),
    )


def rank_of(record: TenantRecord) -> Rank:
    """Return the place of a tenant's restore in the order of the queue, as if it arrived last."""
    return record.class_ != "online", record.priority, inf


def refuse_without_free_memory(record: TenantRecord, node: Node) -> None:
    """Raise CannotRestore if the driver, asked now, has less free than is to be restored.

    The room is reserved by now. What takes it is in no allocation: memory of a program that
    bypasses its quota, or of one that has just ended.
    """
    driver = node.loaded()
    try:
        figures = driver.nvml.figures()
    except DriverError as error:
        raise CannotRestore(f"{record.title} is not restored: {error}") from error
    for number, allocation in enumerate(record.allocations):
        card = driver.card(allocation.uuid)
        free = None if card is None else figures.free_bytes(card)
        if card is None or free is None:
            raise CannotRestore(
                f"{record.title} is not restored: the driver does not report the memory of its card"
            )
        needed = record.evicted_bytes(number) + BESIDE_BYTES
        if needed > free:
            raise CannotRestore(
                f"{record.title} is not restored: it needs {format_size(needed)}, and the driver "
                f"has {format_size(max(0, free))} of card {card.index} free"
            )


def write_cards(record: TenantRecord, tenants: Tenants) -> None:
    """Have the tenant's page name the cards of its allocations."""
    pages = tenants.pages.get(record.key)
    for number, allocation in enumerate(record.allocations):
        if pages is not None and pages.grant.uuid(number) != allocation.uuid:
            pages.grant.set_uuid(number, allocation.uuid)
            pages.grant.publish()


def has_card_node(record: TenantRecord, card: Card) -> bool:
    """Whether the first process of a tenant can open the node of `card`.

    `gpushare run` as root mounts those of other cards so that they cannot be opened; without root,
    a host process has all. Nothing of a container is followed: its /dev is what its runtime has
    mounted.
    """
    is_host = record.engine == "host"
    try:
        with (
            opened(-1, f"/proc/{record.pid}/root/dev", os.O_PATH | os.O_DIRECTORY) as dev,
            opened(dev, f"nvidia{card.minor}", os.O_PATH) as path,
        ):
            node, is_closed = os.fstat(path), os.fstatvfs(path).f_flag & os.ST_NODEV
    except OSError:
        return is_host  # the driver makes it when it is opened
    if is_closed:
        return False
    return is_host or (stat.S_ISCHR(node.st_mode) and os.minor(node.st_rdev) == card.minor)
