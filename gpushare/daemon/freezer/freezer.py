# SPDX-License-Identifier: Apache-2.0
"""Freezes, thaws and kills tenants, for an operator or for the audit.

A tenant is frozen while at least one decision freezes it. The truth is the state of its cgroup and
the memory of this process; the decisions are also written to the ledger, by the decide thread, but
no freeze or kill waits for that write or needs it to succeed. At the next start, a tenant that the
audit froze is thawed and judged anew; a tenant that an operator paused stays paused; a
tenant that was to be killed is killed. A tenant whose cgroup is frozen without a written decision
stays frozen, as "unknown", until an operator resumes it or the program that froze it thaws it. The
memory of a frozen tenant stays allocated and used. Its part of the compute goes to the others
meanwhile.

A cgroup that an engine has paused is not thawed here. A tenant that an engine thaws although it is
frozen here is frozen again at the next look. All of this is the freeze thread's
(`DaemonState.freezing`), but for `is_frozen` and `freezes_of`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.freezer.tenant_cgroup import SharedCgroup, cgroup_freezer, freezable_groups
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import NOT_FREEZES, By, FreezeRecord, TenantRecord
from gpushare.errors import UserError
from gpushare.host.cgroups import CgroupFreezer

_FOUND: Final = "its cgroup was frozen when gpushared started, without a record of the reason"
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

    def is_frozen(self, key: str) -> bool:
        """Whether tenant `key` is frozen, or is about to be."""
        return self._ledger.is_frozen(key)

    def freezes_of(self, key: str) -> tuple[FreezeRecord, ...]:
        """Return the decisions on tenant `key`."""
        return self._ledger.freezes.of(key)

    def freeze(self, key: str, by: By, why: str) -> None:
        """Freeze tenant `key`; CannotFreeze: nothing was changed."""
        record = self._running(key)
        before = self.freezes_of(key)
        cgroup, group = self._group(record, before)
        if any(freeze.by == by for freeze in before) and group.is_set():
            return
        freeze = FreezeRecord(
            key, by, why, time.time(), cgroup=cgroup, thaws=_thaws(before, cgroup, group)
        )
        self._note(record, freeze)
        try:
            still = group.freeze()
        except OSError as error:
            self._ledger.freezes.drop(key, by)
            raise CannotFreeze(f"{record.title} cannot be frozen: {error}") from error
        log("tenant-frozen", **_identity(record), by=by, reason=why, cgroup=cgroup, still=still)
        self._changed()

    def release(self, key: str, by: By, who: By | None = None) -> bool:
        """Take back the decision of `by` on tenant `key`: it runs, unless another froze it too.

        The event names `who` as the one that does so, or `by` itself.

        False where `by` had not decided anything.
        """
        own = next((freeze for freeze in self.freezes_of(key) if freeze.by == by), None)
        if own is None:
            return False
        kept = (freeze for freeze in self.freezes_of(key) if freeze.by != by)
        others = [freeze for freeze in kept if freeze.by != "stop"]
        thaws = not others and own.thaws
        if thaws:
            _thaw(own)
        self._ledger.freezes.drop(key, by)
        record = self._ledger.entries.get(key)
        if record is not None:
            log(
                "tenant-thawed",
                **_identity(record),
                by=who or by,
                left=[one.by for one in others],
                ours=thaws,
            )
        self._changed()
        return True

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
        cgroup, _ = self._group(record, ())
        earlier = (freeze.due for freeze in self.freezes_of(key) if freeze.by == "stop")
        due = min([boottime() + after_seconds, *earlier])
        self._note(record, FreezeRecord(key, "stop", why, time.time(), due, cgroup))

    def adopt(self) -> None:
        """Set right what an earlier daemon left: see the top."""
        for key in list(self._ledger.freezes.all):
            try:
                self.release(key, "audit")
            except OSError as error:
                log("tenant-freeze-failed", "error", tenant=key, error=str(error))
        for record in self._ledger.entries.values():
            if record.state == "bound" and not self.freezes_of(record.key):
                self._adopt_frozen(record)
        self.enforce()

    def _adopt_frozen(self, record: TenantRecord) -> None:
        """Note that a tenant is frozen, where its cgroup is and no record says why."""
        try:
            cgroup, group = self._group(record, ())
        except CannotFreeze:
            return
        if group.is_set():
            freeze = FreezeRecord(record.key, "unknown", _FOUND, time.time(), cgroup=cgroup)
            self._note(record, freeze)
            log("tenant-found-frozen", "warning", **_identity(record), cgroup=cgroup)

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
                ends = next((freeze for freeze in freezes if freeze.by == "stop"), None)
                if ends is not None and ends.due <= boottime():
                    self._kill(record, ends.why)
                elif self.is_frozen(key):
                    self._freeze_again(record, freezes)
                elif any(freeze.by == "unknown" for freeze in freezes):
                    self._forget_thawed(record)
            except (CannotFreeze, OSError) as error:
                log("tenant-freeze-failed", "error", **_identity(record), error=str(error))

    def _running(self, key: str) -> TenantRecord:
        record = self._ledger.entries.get(key)
        if record is None:
            raise CannotFreeze(f"tenant {key} no longer exists: it has exited")
        if record.state == "none":
            raise CannotFreeze(f"{record.title} has no share of a GPU: {record.why}")
        if record.state == "reserved" or _is_being_started(record.pid):
            raise CannotFreeze(f"{record.title} is still starting; try again when it is running")
        return record

    def _group(
        self, record: TenantRecord, freezes: tuple[FreezeRecord, ...]
    ) -> tuple[str, CgroupFreezer]:
        """Return the cgroup to freeze: that which is frozen already, where it is."""
        found = self._own(record)
        named = next(
            (freeze.cgroup for freeze in freezes if freeze.cgroup in found), next(iter(found))
        )
        return named, found[named]

    def _own(self, record: TenantRecord) -> dict[str, CgroupFreezer]:
        try:
            return freezable_groups(record, self._ledger.entries, Cgroups.mounted())
        except SharedCgroup as error:
            if processes.find_process(record.pid) is None:
                raise CannotFreeze(f"{record.title} has ended") from error
            raise CannotFreeze(str(error)) from error

    def _note(self, record: TenantRecord, freeze: FreezeRecord) -> None:
        """Record `freeze`, unless the tenant was released meanwhile, which forgets its freezes."""
        self._ledger.freezes.put(freeze)
        now = self._ledger.entries.get(record.key)
        if now is None or (now.pid, now.starttime) != (record.pid, record.starttime):
            self._ledger.freezes.forget(record.key)

    def _forget_thawed(self, record: TenantRecord) -> None:
        """Forget a freeze of unknown origin that has ended: another program thawed the tenant."""
        _, group = self._group(record, self.freezes_of(record.key))
        if not group.is_set():
            self._ledger.freezes.drop(record.key, "unknown")

    def _freeze_again(self, record: TenantRecord, freezes: tuple[FreezeRecord, ...]) -> None:
        cgroup, group = self._group(record, freezes)
        left = Cgroups.mounted().processes(cgroup)
        # Under v1 they would be kept from ending.
        if group.is_set() or all(map(processes.is_being_killed, left)):
            return
        for freeze in freezes:
            # The program that froze it before us has thawed it: from now on it is ours to thaw.
            if freeze.by not in NOT_FREEZES and (not freeze.thaws or freeze.cgroup != cgroup):
                self._note(record, replace(freeze, cgroup=cgroup, thaws=True))
        group.freeze()
        log("tenant-refrozen", "warning", **_identity(record), cgroup=cgroup)

    def _kill(self, record: TenantRecord, why: str) -> None:
        """End it, in whichever of its groups that can be done; the others are thawed for it."""
        if self._postpones_kill(record, self.enforce):
            return
        group, *others = self._own(record).values()
        ended = group.kill(0.0)
        if not ended:
            for other in others:
                other.thaw()
            ended = group.kill(_KILL_SECONDS)
        if ended:
            log("tenant-killed", "warning", **_identity(record), reason=why)
            self._killed.pop(record.key, lambda: None)()
        else:
            log("tenant-kill-retried", "warning", **_identity(record), reason=why)


def _is_being_started(pid: int) -> bool:
    """Whether it still runs its runtime's code, which a caller waits for."""
    try:
        return processes.is_nobodys_program(pid)
    except OSError:
        return False


def _thaws(before: tuple[FreezeRecord, ...], cgroup: str, group: CgroupFreezer) -> bool:
    """Whether the group is ours to thaw: no other program has it frozen."""
    ours = next((freeze.thaws for freeze in before if freeze.cgroup == cgroup), None)
    return not group.is_set() if ours is None else ours


def _thaw(freeze: FreezeRecord) -> None:
    group = cgroup_freezer(freeze.cgroup, Cgroups.mounted())
    if group is not None:
        group.thaw()


def _identity(record: TenantRecord) -> dict[str, str]:
    return {"tenant": record.key, "id": record.id, "name": record.title}
