# SPDX-License-Identifier: Apache-2.0
"""Freezes, thaws and kills tenants, for an operator or for the audit.

A tenant is frozen while at least one decision freezes it. The truth is the state of its cgroup and
the memory of this process; the decisions are also written to the ledger, by the decide thread, but
no freeze or kill waits for that write or needs it to succeed. At the next start, a tenant that the
audit froze is thawed and judged anew; a tenant that an operator paused stays paused; a
tenant that was to be killed is killed. A tenant whose cgroup is frozen without a written decision
stays frozen until an operator resumes it or the program that froze it thaws it: its engine has
paused it, or a daemon froze it whose disk was full or which was killed right then. The
memory of a frozen tenant stays allocated and used. Its part of the compute goes to the others
meanwhile.

A cgroup that an engine has paused is not thawed here. A tenant that an engine thaws although it is
frozen here is frozen again at the next look. All of this is the freeze thread's
(`DaemonState.freezing`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Worker, boottime
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import By, FreezeRecord, TenantRecord
from gpushare.errors import UserError
from gpushare.host.cgroups import CgroupFreezer, CgroupV1Freezer, CgroupV2Freezer

_KILL_SECONDS: Final = 0.3  # then others are served, and it is tried again


class CannotFreeze(UserError):
    """The tenant cannot be frozen, thawed or killed; the text says why."""


class Freezer:
    """Freezes the tenants of `ledger`; `changed` is called after the set of frozen ones changed.

    `postpones_kill` is whether a tenant's kill has to wait; it has `enforce` called again.
    """

    def __init__(
        self,
        ledger: Ledger,
        changed: Callable[[], None],
        postpones_kill: Callable[[TenantRecord, Callable[[], None]], bool] = lambda *_: False,
    ) -> None:
        self._ledger = ledger
        self._changed = changed
        self._killed: dict[str, Callable[[], None]] = {}  # to be called when a kill is complete
        self._postpones_kill = postpones_kill

    def freeze(self, key: str, by: By, why: str) -> None:
        """Freeze tenant `key`; CannotFreeze: nothing was changed."""
        record = self._running(key)
        group = self._group(record)
        is_set = group.is_set()
        if is_set and self._ledger.freezes.by(key, by):
            return
        # Ours to thaw, unless another program has it frozen.
        thaws = next((freeze.thaws for freeze in self._ledger.freezes.of(key)), not is_set)
        self._note(record, FreezeRecord(key, by, why, time.time(), thaws=thaws))
        try:
            still = group.freeze()
        except OSError as error:
            self._ledger.freezes.drop(key, by)
            raise CannotFreeze(f"{record.title} cannot be frozen: {error}") from error
        how = {"by": by, "reason": why, "cgroup": record.cgroup}
        log("tenant-frozen", **record.identity, **how, still=still)
        self._changed()

    def release(self, key: str, by: By, who: By | None = None) -> bool:
        """Take back the decision of `by` on tenant `key`: it runs, unless another froze it too.

        The event names `who` as the one that does so, or `by` itself.

        False where `by` had not decided anything.
        """
        own = self._ledger.freezes.by(key, by)
        if own is None:
            return False
        others = [
            freeze.by for freeze in self._ledger.freezes.of(key) if freeze.by not in {by, "stop"}
        ]
        thaws = not others and own.thaws
        record = self._ledger.entries.get(key)
        if record is not None and thaws:
            _thaw(record.cgroup)
        self._ledger.freezes.drop(key, by)
        if record is not None:
            log("tenant-thawed", **record.identity, by=who or by, left=others, ours=thaws)
        self._changed()
        return True

    def thaw(self, record: TenantRecord) -> bool:
        """Thaw a tenant that no decision freezes; False: it is not frozen. CannotFreeze."""
        group = self._group(record)
        is_set = group.is_set()
        if is_set:
            group.thaw()
            log("tenant-thawed", **record.identity, by="operator", left=[], ours=False)
        return is_set

    def kill(self, key: str, why: str, killed: Callable[[], None] = lambda: None) -> None:
        """End all processes of tenant `key`, frozen or not; CannotFreeze where it cannot be.

        `killed` is called when that has happened: processes that are in the kernel may end later,
        and it is tried again. The release follows when the end is seen.
        """
        self.promise_kill(key, why, 0.0)
        self._killed[key] = killed
        self._kill(self._running(key), why)

    def promise_kill(self, key: str, why: str, after_seconds: float) -> None:
        """Have `enforce` end tenant `key`, when `after_seconds` have passed; CannotFreeze.

        A second promise never postpones the first.
        """
        record = self._running(key)
        self._group(record)
        due, earlier = boottime() + after_seconds, self._ledger.freezes.by(key, "stop")
        if earlier is not None:
            due = min(due, earlier.due)
        self._note(record, FreezeRecord(key, "stop", why, time.time(), due))

    def adopt(self) -> None:
        """Set right what an earlier daemon left: see the top."""
        for key in list(self._ledger.freezes.all):
            try:
                self.release(key, "audit")
            except OSError as error:
                log("tenant-freeze-failed", "error", tenant=key, error=str(error))
        self.enforce()

    def enforce(self) -> None:
        """Freeze tenants again that another thawed, and kill those that are to be killed."""
        for key in self._killed.keys() - self._ledger.entries.keys():
            self._killed.pop(key)()
        for key, freezes in self._ledger.freezes.all.items():
            record = self._ledger.entries.get(key)
            if record is None:
                self._ledger.freezes.forget(key)
                continue
            try:
                kill = self._ledger.freezes.by(key, "stop")
                if kill is not None and kill.due <= boottime():
                    self._kill(record, kill.why)
                elif self._ledger.is_frozen(key):
                    self._freeze_again(record, freezes)
            except (CannotFreeze, OSError) as error:
                log("tenant-freeze-failed", "error", **record.identity, error=str(error))

    def _running(self, key: str) -> TenantRecord:
        record = self._ledger.entries.get(key)
        if record is None:
            raise CannotFreeze(f"tenant {key} no longer exists: it has exited")
        if record.state == "none":
            raise CannotFreeze(f"{record.title} has no share of a GPU: {record.why}")
        # One that still runs its runtime's code has a caller that waits for it.
        if record.state == "reserved" or processes.is_nobodys_program(record.pid):
            raise CannotFreeze(f"{record.title} is still starting; try again when it is running")
        return record

    def _group(self, record: TenantRecord) -> CgroupFreezer:
        try:
            return freezable_group(record, self._ledger.entries, Cgroups.mounted())
        except CannotFreeze as error:
            if processes.find_process(record.pid) is None:
                raise CannotFreeze(f"{record.title} has ended") from error
            raise

    def _note(self, record: TenantRecord, freeze: FreezeRecord) -> None:
        """Record `freeze`, unless the tenant was released meanwhile, which forgets its freezes."""
        self._ledger.freezes.put(freeze)
        now = self._ledger.entries.get(record.key)
        if now is None or (now.pid, now.starttime) != (record.pid, record.starttime):
            self._ledger.freezes.forget(record.key)

    def _freeze_again(self, record: TenantRecord, freezes: tuple[FreezeRecord, ...]) -> None:
        group = self._group(record)
        left = Cgroups.mounted().processes(record.cgroup)
        # Under v1 they would be kept from ending.
        if group.is_set() or all(map(processes.is_being_killed, left)):
            return
        for freeze in freezes:
            # The program that froze it before us has thawed it: from now on it is ours to thaw.
            if freeze.by != "stop" and not freeze.thaws:
                self._note(record, replace(freeze, thaws=True))
        group.freeze()
        log("tenant-refrozen", "warning", **record.identity, cgroup=record.cgroup)

    def _kill(self, record: TenantRecord, why: str) -> None:
        """End it. Where v1 stands beside v2, an engine's pause is v1's, and may be in the way."""
        if self._postpones_kill(record, self.enforce):
            return
        group = self._group(record)
        ended = group.kill(0.0)
        if not ended:
            _thaw(f"{FREEZER}:{_path(record)}")
            ended = group.kill(_KILL_SECONDS)
        if ended:
            log("tenant-killed", "warning", **record.identity, reason=why)
            self._killed.pop(record.key, lambda: None)()
        else:
            log("tenant-kill-retried", "warning", **record.identity, reason=why)


# A tenant's cgroup. The one in its record has all of its processes and no others, and is in a
# hierarchy that can freeze, if the runtime made one there.

UNIFIED: Final = ""
FREEZER: Final = "freezer"
_KINDS: Final[Mapping[str, tuple[Callable[[Path], CgroupFreezer], str]]] = {
    UNIFIED: (CgroupV2Freezer, "cgroup.freeze"),
    FREEZER: (CgroupV1Freezer, "freezer.state"),
}


def freezable_group(
    record: TenantRecord, records: Mapping[str, TenantRecord], cgroups: Cgroups
) -> CgroupFreezer:
    """Return the group that holds `record`'s processes and no others'; CannotFreeze."""
    if not record.cgroup:
        raise CannotFreeze(f"{record.title} shares its cgroup with other processes")
    hierarchy, _, path = record.cgroup.partition(":")
    for other in records.values():
        name, _, its = other.cgroup.partition(":")
        if other.key == record.key or other.state == "none" or name != hierarchy:
            continue
        if f"{its}/".startswith(f"{path}/"):
            raise CannotFreeze(
                f"{record.title} cannot be frozen: {other.title} is in its cgroup {path}"
            )
    group = cgroup_freezer(record.cgroup, cgroups)
    if group is None:
        raise CannotFreeze(f"{record.title} cannot be frozen: {record.cgroup} has no freezer")
    return group


def cgroup_freezer(cgroup: str, cgroups: Cgroups) -> CgroupFreezer | None:
    """Return the group "hierarchy:path"; None where it is gone or cannot be frozen."""
    hierarchy, _, path = cgroup.partition(":")
    directory = cgroups.directory(cgroup)
    if hierarchy not in _KINDS or directory is None or not path.strip("/") or ".." in path:
        return None
    kind, file = _KINDS[hierarchy]
    return kind(directory) if (directory / file).exists() else None


def _thaw(cgroup: str) -> None:
    """Thaw a group, if it is there."""
    group = cgroup_freezer(cgroup, Cgroups.mounted())
    if group is not None:
        group.thaw()


def _path(record: TenantRecord) -> str:
    return record.cgroup.partition(":")[2]


def is_frozen(record: TenantRecord) -> bool:
    """Whether the cgroup of a running tenant is frozen, whoever did it."""
    path, mounted = _path(record), _hierarchies()
    groups = (cgroup_freezer(f"{hierarchy}:{path}", mounted) for hierarchy in _KINDS)
    return record.state == "bound" and any(group.is_frozen() for group in groups if group)


def runs_unbound(record: TenantRecord) -> bool:
    """Whether something runs in a container that is not bound."""
    return (
        record.state != "bound"
        and record.cgroup != ""
        and _hierarchies().is_populated(record.cgroup)
    )


def kill_unbound(record: TenantRecord, freezing: Worker, killed: Callable[[], None]) -> None:
    """Kill what runs in the container of a reservation, and call `killed`; freeze thread."""
    log("tenant-start-abandoned", "warning", tenant=record.key, id=record.id, cgroup=record.cgroup)

    def kill() -> None:
        cgroups = Cgroups.mounted()
        for hierarchy in _KINDS:
            group = cgroup_freezer(f"{hierarchy}:{_path(record)}", cgroups)
            if group is not None:
                group.kill(_KILL_SECONDS)
        killed()

    freezing.submit(kill)


#: In cgroup v1, where every runtime puts a container; else in the one of v2.
_HIERARCHIES: Final = (FREEZER, UNIFIED)


def own_path(cgroups_path: object, identity: str) -> str:
    """Return the path of the cgroup that `linux.cgroupsPath` describes.

    "" where it does not say, or the cgroup would not have the container's name: it might not be the
    container's alone.
    """
    if not isinstance(cgroups_path, str) or ".." in cgroups_path:
        return ""
    slice_, is_systemds, unit = cgroups_path.partition(":")
    if is_systemds:
        prefix, colon, name = unit.partition(":")
        if not colon or not slice_.endswith(".slice") or slice_ == "-.slice":
            return ""
        parts = slice_.removesuffix(".slice").split("-")
        slices = [f"{'-'.join(parts[: length + 1])}.slice" for length in range(len(parts))]
        scope = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
        path = "/" + "/".join([*slices, scope])
    else:
        path = cgroups_path.rstrip("/")
    leaf = path.rpartition("/")[2]
    return path if path.startswith("/") and identity and identity in leaf else ""


def expected_cgroup(cgroups_path: object, identity: str, maker: int) -> str:
    """Return the cgroup that runtime `maker` will make for container `identity`; "" if unknown.

    "hierarchy:path", as this process sees it. A cgroup in which something runs is nobody's to be.
    """
    path = own_path(cgroups_path, identity)
    if not path or not maker or not _has_our_view(maker):
        return ""
    cgroups = _hierarchies()
    for hierarchy in _HIERARCHIES:
        cgroup = f"{hierarchy}:{path}"
        directory = cgroups.directory(cgroup)
        if directory is not None:
            return "" if directory.exists() and cgroups.is_populated(cgroup) else cgroup
    return ""


@functools.cache
def _hierarchies() -> Cgroups:
    """Return the hierarchies of this machine, which are mounted once: every create waits for it."""
    return Cgroups.mounted()


def _has_our_view(pid: int) -> bool:
    """Whether a path of a cgroup means the same to process `pid` (cgroup_namespaces(7))."""
    try:
        return Path(f"/proc/{pid}/ns/cgroup").stat().st_ino == _our_view()
    except OSError:
        return False


@functools.cache
def _our_view() -> int:
    return Path("/proc/self/ns/cgroup").stat().st_ino
