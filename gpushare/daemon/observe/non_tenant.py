# SPDX-License-Identifier: Apache-2.0
"""Memory of a card that belongs to no tenant: of processes and containers, and of no process.

A process is a non-tenant once it was in two samples, but not while a tenant or the daemon has just
left it behind. Its container is found by the names that engines give to cgroups, for people and to
tell a container from the host's own programs; no tenant is identified by it. Sources: cgroup names
of dockerd, containerd's CRI, CRI-O and podman, of either cgroup driver: `/docker/ID`,
`/system.slice/docker-ID.scope`, `/kubepods/.../podUID/ID`,
`/kubepods.slice/.../cri-containerd-ID.scope`, `/machine.slice/libpod-ID.scope`.

Memory that the driver lists for no process is managed memory, memory that outlives its process, and
the driver's own. No tenant is held responsible for it: it is shown, for a tenant may lack it.
Managed memory that tenants claim is not counted in it.

A process that an engine has put into a container (`--privileged`, with a plain runtime) has
bypassed gpushare, so it is reported. Programs of the host itself never are: a desktop may use its
card.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.core.log import log
from gpushare.daemon.identity import processes
from gpushare.daemon.observed import AuditInput, CardUsage, Observations
from gpushare.daemon.placement.model import NonTenantProcess

_GRACE_SECONDS: Final = 10.0  # a process that was a tenant's may take this long to leave the card
_HALF_LIFE_SECONDS: Final = 60.0  # of what was seen and is no more
_GRANULE_BYTES: Final = 1 << 20  # nearer than this to the current use, a mark is that


class NonTenantUse:
    """Which processes of a card belong to no tenant, over time."""

    def __init__(self) -> None:
        # By card: the most that was seen, which halves its distance to the current use, and when.
        self._marks: dict[str, tuple[int, float]] = {}
        self._suspects: dict[str, frozenset[int]] = {}
        # By card, of the last sample: bytes by PID of those that counted, and in use altogether.
        self._counted: dict[str, dict[int, int]] = {}
        self._used: dict[str, int | None] = {}
        self._known: dict[int, float] = {}  # pid of a tenant or ours -> when last seen as such
        self._lock = threading.Lock()  # of _known: the probe is excused by the thread that runs it

    def excuse(self, pid: int, now: float) -> None:
        """Note that `pid` is a tenant's, or the daemon's own. Any thread may."""
        with self._lock:
            self._known[pid] = now

    def observe(  # noqa: PLR0913 - of what a sample has of a card
        self,
        now: float,
        card: str,
        unallocated: Sequence[ProcessUse],
        strays: Sequence[ProcessUse] = (),
        *,
        first: bool,
        used_bytes: int | None = None,
    ) -> CardUsage:
        """Return the card's non-tenant use after `unallocated` were in the sample at `now`.

        `used_bytes` is what the driver says of the whole card: where it falls with a process that
        has ended, that does not count any longer. What one that runs gives back does, for a while.
        `strays` are of tenants that have no part of the card, which excuses none of them.
        In the `first` sample they count at once: a process from before the daemon is a non-tenant.
        """
        with self._lock:
            self._known = {pid: at for pid, at in self._known.items() if now - at < _GRACE_SECONDS}
            unexcused = [
                *(use for use in unallocated if use.pid not in self._known),
                *strays,
            ]
        before = self._suspects.get(card, frozenset())
        self._suspects[card] = frozenset(use.pid for use in unexcused)
        non_tenant = tuple(
            NonTenantProcess(
                use.pid,
                processes.name_of(use.pid),
                use.bytes,
                container_of(processes.cgroups_of(use.pid)),
            )
            for use in unexcused
            if use.bytes and (first or use.pid in before)
        )
        listed = {use.pid for use in (*unallocated, *strays)}
        counted = {process.pid: process.bytes for process in non_tenant}
        ended = sum(
            size
            for pid, size in self._counted.get(card, {}).items()
            if pid not in listed and processes.find_outer(pid) is None
        )
        used_before = self._used.get(card)
        fell = 0 if used_bytes is None or used_before is None else used_before - used_bytes
        self._counted[card], self._used[card] = counted, used_bytes
        size, (mark, at) = sum(counted.values()), self._marks.get(card, (0, now))
        distance = mark - max(0, min(ended, fell)) - size
        if distance > 0:
            distance = int(distance * 0.5 ** (max(0.0, now - at) / _HALF_LIFE_SECONDS))
        mark = size if distance < _GRANULE_BYTES else size + distance
        self._marks[card] = mark, now
        return CardUsage(non_tenant, mark)


_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SCOPE: Final = re.compile(r"([a-z][a-z-]*)-([0-9a-f]{64})(\.scope)?", re.ASCII)
_ENGINES: Final = {"libpod": "podman", "crio": "cri-o", "cri-containerd": "containerd"}


def container_of(cgroups: Mapping[str, str]) -> str:
    """Return "docker 4f5e6d7c8b9a", empty where `cgroups`, by hierarchy, are no container's."""
    return next(filter(None, map(_named, dict.fromkeys(cgroups.values()))), "")


def _named(path: str) -> str:
    parts = path.strip("/").split("/")
    for place, part in reversed(list(enumerate(parts))):
        scope = _SCOPE.fullmatch(part)
        if scope is not None:
            return f"{_ENGINES.get(scope[1], scope[1])} {scope[2][:12]}"
        if _ID.fullmatch(part):
            above = parts[place - 1] if place else ""
            engine = "docker" if above == "docker" else "containerd"
            return f"{engine} {part[:12]}"
    return ""


_LOOKS: Final = 4  # the least of them, as with overhead: one look may race


class Unattributed:
    """Bytes by the card's uuid, in `observed.unattributed`; the truth thread's."""

    def __init__(self, observed: Observations) -> None:
        self._observed = observed
        self._looks: dict[str, deque[int]] = {}

    def look(self, look: AuditInput) -> None:
        """Take a look in."""
        unattributed = dict(self._observed.unattributed)
        for uuid, used in look.sample.used.items():
            uses = look.sample.uses.get(uuid)
            if uses is None or any(use.bytes is None for use in uses):
                continue
            known = sum(use.bytes or 0 for use in uses) + _managed(look, uuid)
            looks = self._looks.setdefault(uuid, deque(maxlen=_LOOKS))
            looks.append(max(0, used - known))
            unattributed[uuid] = min(looks)
        self._observed.unattributed = MappingProxyType(unattributed)


def _managed(look: AuditInput, uuid: str) -> int:
    """Return what the tenants of a card claim of managed memory, some of which is on it.

    No tenant has more than it was ever allowed, so that none can hide the memory of the others.
    """
    return sum(
        min(
            allocation.burst_limit_bytes + allocation.managed_bytes,
            sum(
                claim.held[number].kinds[abi.KIND_MANAGED]
                for claim in look.after.get(key, ())
                if number < len(claim.held)
            ),
        )
        for key, record in look.entries.items()
        for number, allocation in enumerate(record.allocations)
        if allocation.uuid == uuid
    )


class UnallocatedContainers:
    """Containers that use a card without an allocation, of the last look; the truth thread's."""

    def __init__(self, observed: Observations) -> None:
        self._observed = observed
        self._known: set[tuple[int, int, str]] = set()  # by pid, start time and card

    def look(self, look: AuditInput) -> None:
        """Note each container; a new one is an event."""
        containers: list[tuple[str, NonTenantProcess]] = []
        known: set[tuple[int, int, str]] = set()
        sightings = {
            (uuid, use.pid): sighting
            for uuid, uses in look.owned.items()
            for sighting, use in uses
            if sighting
        }
        for uuid, card in self._observed.usage.cards.items():
            for non_tenant in card.non_tenants if uuid in look.owned else ():
                sighting = sightings.get((uuid, non_tenant.pid))
                if not non_tenant.container or sighting is None or sighting.process is None:
                    continue  # a program of the host, or one that has ended
                if not sighting.holds or len(sighting.keys) > 1:  # in several tenants' cgroups
                    continue
                tenant = look.entries.get(sighting.key or "")
                if tenant is not None and tenant.state == "bound":
                    continue  # its quota there is 0, and the audit judges it
                place = non_tenant.pid, sighting.process.starttime, uuid
                known.add(place)
                containers.append((uuid, non_tenant))
                if place not in self._known:
                    log(
                        "unallocated-container-detected",
                        "warning",
                        card=uuid,
                        pid=non_tenant.pid,
                        program=non_tenant.name,
                        container=non_tenant.container,
                        used_bytes=non_tenant.bytes,
                    )
        self._known = known
        self._observed.unallocated = tuple(containers)
