# SPDX-License-Identifier: Apache-2.0
"""What has to hold before a tenant is evicted: all of it is known before a process is locked.

| not evicted | why |
|---|---|
| whole cards | no library in the container: a call blocks in the driver, and nothing is told |
| MIG instances, clients of an MPS server | the driver cannot (NVIDIA/cuda-checkpoint 42; CRIU) |
| managed memory | the driver cannot (CRIU, plugins/cuda/README) |
| shared and imported memory | the driver cannot, or from 610 on only under its own launcher |
| paused or frozen | a frozen process answers no call of the driver |

What a tenant claims of itself decides only whether it is tried: the driver refuses the rest, and
the tenant goes on as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.eviction.checkpoint_client import why_unsupported
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.pages.status_page import ProcessClaim
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import EvictedProcess, TenantRecord
from gpushare.errors import UserError
from gpushare.quota.size import format_size

#: What the driver takes of host memory beside the copy: page tables, and its own records.
_BESIDE_PERCENT: Final = 2
_OFF: Final = 0


class CannotEvict(UserError):
    """The tenant is not evicted, and goes on as it was; the text says why."""


class CannotRestore(UserError):
    """The tenant is not restored, and stays as it was; the text says why."""


@dataclass(frozen=True)
class EvictableUse:
    """What an eviction is about: the processes in their order, and the bytes by card number."""

    processes: tuple[EvictedProcess, ...]
    card_bytes: tuple[int, ...]
    cgroups: Cgroups

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self.card_bytes)


def refuse_unevictable(record: TenantRecord, state: DaemonState) -> None:
    """Raise CannotEvict for what is seen without looking at processes; any thread."""
    why = why_not(record, state)
    if why:
        raise CannotEvict(f"{record.title} cannot be evicted: {why}")


def why_not(record: TenantRecord, state: DaemonState) -> str:
    """Return why a tenant cannot be evicted, as far as that is seen without its processes."""
    if not record.allocations:
        return "it has no GPU"
    if record.state != "bound":
        return "it has not started yet"
    if record.eviction is not None:
        return _STATE_TEXTS[record.eviction.state]
    driver = state.node.loaded()
    unsupported = why_unsupported(driver.nvml.driver_version)
    if unsupported:
        return unsupported
    if host_memory_bound(state) <= _OFF:
        return "evict.host_memory of gpushare.yaml is 0"
    if not record.shared:
        return "it has whole cards, and no library that could ask for its restore"
    cards = [driver.card(allocation.uuid) for allocation in record.allocations]
    if any(card is not None and card.instance is not None for card in cards):
        return "it has a MIG instance, which the driver cannot evict"
    if state.ledger.is_frozen(record.key):
        return f"it is paused or frozen; gpushare resume {record.title} first"
    uses = state.observed.usage.processes.get(record.key, ())
    if record.isolation == MPS or any(use.is_mps for _, use in uses):
        return "it uses an MPS server, whose clients the driver cannot evict"
    pages = state.tenants.pages.get(record.key)
    if pages is None:
        return "its pages are lost; restart the container"
    return _of_pages(pages, len(record.allocations))


_STATE_TEXTS: Final[Mapping[str, str]] = {
    "evicting": "it is being evicted",
    "evicted": "it is evicted already",
    "restoring": "it is being restored",
    "failed": "an earlier eviction has failed (gpushare explain evicted)",
}


def _of_pages(pages: Pages, cards: int) -> str:
    claims = pages.claims()
    if not claims:
        return "none of its programs uses a card"
    return next(filter(None, (_of_claims(claims, number) for number in range(cards))), "")


def _of_claims(claims: tuple[ProcessClaim, ...], number: int) -> str:
    held = [claim.held[number] for claim in claims]
    if any(one.kinds[abi.KIND_MANAGED] for one in held):
        return "it has managed memory (cudaMallocManaged), which the driver cannot evict"
    if any(one.exported_bytes or one.imported_bytes for one in held):
        return "its processes share GPU memory (CUDA IPC), which the driver cannot evict"
    if any(one.kinds[abi.KIND_EXTERNAL] for one in held):
        return "it has imported memory of another API, which the driver cannot evict"
    return ""


def evictable_use(record: TenantRecord, state: DaemonState) -> EvictableUse:
    """Return what is to be evicted of a tenant; CannotEvict if host memory has no room for it."""
    cgroups = Cgroups.mounted()
    use = EvictableUse(
        driver_processes(record, state, cgroups),
        tuple(_card_bytes(record, number, state) for number in range(len(record.allocations))),
        cgroups,
    )
    _refuse_without_memory(record, use, state)
    return use


def driver_processes(
    record: TenantRecord, state: DaemonState, cgroups: Cgroups
) -> tuple[EvictedProcess, ...]:
    """Return the tenant's processes that use the driver, the oldest first; CannotEvict for none.

    They are those that have registered in its pages, and those that the driver lists.
    """
    usage, pages = state.observed.usage, state.tenants.pages.get(record.key)
    claims = () if pages is None else pages.claims()
    claimed = {(claim.pid, claim.starttime) for claim in claims}
    listed = {use.pid for _, use in usage.processes.get(record.key, ())}
    found = [
        process
        for process in processes.members(record.cgroup, record.pid, cgroups)
        if (process.namespaced_pid, process.starttime) in claimed or process.pid in listed
    ]
    if not found:
        raise CannotEvict(f"{record.title} cannot be evicted: none of its programs uses a card")
    found.sort(key=lambda process: (process.starttime, process.pid))
    return tuple(EvictedProcess(process.pid, process.starttime) for process in found)


def _card_bytes(record: TenantRecord, number: int, state: DaemonState) -> int:
    """Return what a tenant has of a card: by the driver, and where its figures are old by itself.

    A claim counts only up to the quota, or what the tenant may use above it.
    """
    allocation, pages = record.allocations[number], state.tenants.pages.get(record.key)
    seen = state.observed.usage.driver_bytes(record.key, allocation.uuid)
    if pages is None:
        return seen
    claimed, limit, _ = pages.use(number)
    return max(seen, min(claimed, max(limit, allocation.quota_bytes)))


def _refuse_without_memory(record: TenantRecord, use: EvictableUse, state: DaemonState) -> None:
    needed = use.bytes * (100 + _BESIDE_PERCENT) // 100
    evicted = evicted_bytes(state, besides=record.key)
    bound = host_memory_bound(state)
    shown, why = format_size(needed), f"{record.title} cannot be evicted: "
    if evicted + use.bytes > bound:
        has = f", of which {format_size(evicted)} is in use" if evicted else ""
        raise CannotEvict(
            f"{why}it has {format_size(use.bytes)}, and evict.host_memory is "
            f"{format_size(bound)}{has}. Restore or stop another container, or raise the key"
        )
    available = available_bytes()
    if needed > available:
        raise CannotEvict(
            f"{why}it needs {shown} of host memory, and this machine has "
            f"{format_size(available)} available"
        )
    least = least_memory((one.pid for one in use.processes), use.cgroups)
    if least is not None and needed > least.left_bytes:
        raise CannotEvict(
            f"{why}it needs {shown} of host memory, and the container's memory limit leaves "
            f"{format_size(least.left_bytes)} ({least.cgroup}). Raise the limit of the container"
        )


def evicted_bytes(state: DaemonState, besides: str = "") -> int:
    """Return the host memory that evicted tenants have, or are about to; not that of `besides`."""
    return sum(
        record.eviction.bytes
        for record in state.ledger.entries.values()
        if record.eviction is not None and record.key != besides
    )


def host_memory_bound(state: DaemonState) -> int:
    """Return how much host memory evicted tenants may have together."""
    bound = state.node.config.evict.host_memory_bytes
    return total_bytes() // 2 if bound is None else bound


# --- whether host memory has room for a tenant's GPU memory ---
#
# Evicted memory is anonymous memory of the tenant's own processes. It counts in their memory
# cgroup, whose limit would otherwise have the kernel kill them in the middle of an eviction.
# Sources: cgroup-v2.rst (memory.max, memory.current, memory.stat), cgroup-v1/memory.rst.

_MEMINFO: Final = Path("/proc/meminfo")
_UNIFIED: Final = "", "memory.max", "memory.current", "inactive_file"
_LEGACY: Final = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_NO_LIMIT: Final = 1 << 60  # of v1: a number of pages that is as good as none


class MemoryLimit(NamedTuple):
    """What a memory cgroup has left, in bytes."""

    cgroup: str
    left_bytes: int


def least_memory(pids: Iterable[int], cgroups: Cgroups) -> MemoryLimit | None:
    """Return the cgroup with the least memory left of all that `pids` are in; None: no limit.

    Memory of files that are not in use counts as left: the kernel takes it back first.
    """
    found: dict[Path, MemoryLimit] = {}
    for pid in pids:
        paths = processes.cgroups_of(pid)
        for hierarchy, most, used, inactive in (_UNIFIED, _LEGACY):
            root = cgroups.directory(f"{hierarchy}:/")
            path = paths.get(hierarchy)
            if root is None or path is None:
                continue
            group = root / path.lstrip("/")
            while group not in found and group != root.parent:
                left = _left_bytes(group, most, used, inactive)
                if left is not None:
                    found[group] = MemoryLimit(str(group), left)
                group = group.parent
    return min(found.values(), key=lambda one: one.left_bytes, default=None)


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


def available_bytes() -> int:
    """Return what the machine has for new memory without swapping (proc(5), MemAvailable)."""
    return _meminfo("MemAvailable")


def total_bytes() -> int:
    """Return the machine's memory."""
    return _meminfo("MemTotal")


def _meminfo(name: str) -> int:
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return 0
