# SPDX-License-Identifier: Apache-2.0
"""Who is held still, and who is ended: an operator's word, or the audit's.

A tenant is frozen while anybody holds it. Each word is journaled before the kernel is told, and
taken out of the journal after, so that a daemon which is killed in between leaves nobody frozen for
good: what the audit froze is thawed at the next start, and its ladder begins anew; what an operator
paused stays so; who was to be killed is. Memory stays promised, and used. A part of the compute
goes to the others meanwhile.

Who goes round the gate of compute may run by turns (`take_turns`): journaled too, and no hold. It
keeps its share, and whoever does hold it ends that first.

What an engine itself had paused is not ours to thaw. What it thaws of ours is frozen again when it
is next looked at. All of this is the decide thread's, but for `is_held`,
`holds_of` and `pace`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpushare.daemon import clock
from gpushare.daemon.control.own_group import NotOwn, group_of, own_groups
from gpushare.daemon.control.turns import Turns
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.log import log
from gpushare.daemon.store.holds import By, Hold
from gpushare.daemon.store.ledger import Entry, Ledger
from gpushare.errors import UserError
from gpushare.host.freezing import Group

_NO_HOLD: Final = frozenset({"kill", "duty"})
_KILL_SECONDS: Final = 0.3  # then others are served, and it is tried again


class CannotHold(UserError):
    """The tenant cannot be frozen, thawed or killed; the text says why."""


class Freezer:
    """Holds the tenants of `ledger`; `changed` is called after who is held has changed."""

    def __init__(self, ledger: Ledger, changed: Callable[[], None]) -> None:
        self._ledger = ledger
        self._changed = changed
        self._turns: dict[str, Turns] = {}
        self._closed = False

    def is_held(self, key: str) -> bool:
        """Whether tenant `key` is frozen, or is about to be."""
        return any(hold.by not in _NO_HOLD for hold in self.holds_of(key))

    def holds_of(self, key: str) -> tuple[Hold, ...]:
        """Return what was said of tenant `key`."""
        return self._ledger.holds.of(key)

    def hold(self, key: str, by: By, why: str) -> None:
        """Freeze tenant `key`; CannotHold: nothing was changed."""
        entry = self._running(key)
        before = self.holds_of(key)
        cgroup, group = self._group(entry, before)
        if any(hold.by == by for hold in before) and group.is_set():
            return
        self._end_turns(key)
        before = tuple(hold for hold in before if hold.by != "duty")
        said = Hold(key, by, why, time.time(), cgroup=cgroup, thaws=_thaws(before, cgroup, group))
        self._ledger.holds.put(said)
        try:
            still = group.freeze()
        except OSError as error:
            self._ledger.holds.drop(key, by)
            raise CannotHold(f"{entry.title} cannot be frozen: {error}") from error
        log("tenant-frozen", **_who(entry), by=by, why=why, cgroup=cgroup, still=still)
        with contextlib.suppress(OSError):  # that it ran by turns; it is thawed with the others
            self._ledger.holds.drop(key, "duty")
        self._changed()

    def take_turns(self, key: str, why: str, runs: float, failed: Callable[[str], None]) -> None:
        """Have tenant `key` run for `runs` (0..1) of the time until `release` of "duty".

        `failed` is told why, by any thread, where that ends by itself. CannotHold, OSError: as it
        was; so it is with who is held, or was paused by its engine.
        """
        entry = self._running(key)
        if key in self._turns:
            self.pace(key, runs)
            return
        if self._closed or any(hold.by != "duty" for hold in self.holds_of(key)):
            raise CannotHold(f"{entry.title} is held already")
        cgroup, group = self._group(entry, ())
        if group.is_set():
            raise CannotHold(f"{entry.title} is paused by its engine")
        self._ledger.holds.put(Hold(key, "duty", why, time.time(), cgroup=cgroup))
        log("compute-held", "warning", **_who(entry), why=why, cgroup=cgroup)
        self._turns[key] = Turns(group, runs, failed)

    def pace(self, key: str, runs: float) -> bool:
        """Have tenant `key` run for `runs` of the time; False where it does not run by turns."""
        turns = self._turns.get(key)
        if turns is not None:
            turns.runs = runs
        return turns is not None

    def end_all_turns(self) -> None:
        """Let all who run by turns go on, and nobody begin."""
        self._closed = True
        for key in list(self._turns):
            try:
                self.release(key, "duty")
            except OSError as error:  # the next daemon thaws it
                log("hold-failed", "error", tenant=key, error=str(error))

    def thaw_turns(self) -> None:
        """Let them go on whatever the journal says: nobody decides any more."""
        for turns in list(self._turns.values()):
            turns.end()

    def _end_turns(self, key: str) -> bool:
        """Have it run all the time; False where it may still be frozen."""
        turns = self._turns.pop(key, None)
        return turns is not None and turns.end()

    def release(self, key: str, by: By) -> bool:
        """Take back what `by` said of tenant `key`: it goes on, unless another holds it too.

        False where that one did not hold it.
        """
        runs = by == "duty" and self._end_turns(key)
        said = next((hold for hold in self.holds_of(key) if hold.by == by), None)
        if said is None:
            return False
        others = [hold for hold in self.holds_of(key) if hold.by not in {by, *_NO_HOLD}]
        thaws = not others and said.thaws and not runs
        if thaws:
            _thaw(said)
        self._ledger.holds.drop(key, by)
        entry = self._ledger.entries.get(key)
        if entry is not None and by == "duty":
            log("compute-let-go", **_who(entry))
        elif entry is not None:
            log("tenant-thawed", **_who(entry), by=by, left=[one.by for one in others], ours=thaws)
        self._changed()
        return True

    def kill(self, key: str, why: str) -> None:
        """End all processes of tenant `key`, frozen or not; CannotHold where it cannot be.

        Its release follows when its end is seen. Processes that are in the kernel may end later:
        it is tried again. A journal that cannot be written keeps nobody alive.
        """
        try:
            self.promise_kill(key, why, 0.0)
        except OSError as error:
            log("hold-failed", "error", **_who(self._running(key)), error=str(error))
        self._kill(self._running(key), why)

    def promise_kill(self, key: str, why: str, after_seconds: float) -> None:
        """Have `set_right` end tenant `key`, when `after_seconds` have passed; CannotHold."""
        entry = self._running(key)
        cgroup, _ = self._group(entry, ())
        due = clock.boottime() + after_seconds
        self._ledger.holds.put(Hold(key, "kill", why, time.time(), due, cgroup))

    def adopt(self) -> None:
        """Set right what an earlier daemon left: see the top."""
        for key in list(self._ledger.holds.all):
            try:
                self.release(key, "audit")
                self.release(key, "duty")
            except OSError as error:
                log("hold-failed", "error", tenant=key, error=str(error))
        self.set_right()

    def set_right(self) -> None:
        """Freeze again who was thawed by another, and end who was to be ended."""
        for key, holds in self._ledger.holds.all.items():
            entry = self._ledger.entries.get(key)
            if entry is None:
                continue
            try:
                ends = next((hold for hold in holds if hold.by == "kill"), None)
                if ends is not None and ends.due <= clock.boottime():
                    self._kill(entry, ends.why)
                elif self.is_held(key):
                    self._freeze_again(entry, holds)
            except (CannotHold, OSError) as error:
                log("hold-failed", "error", **_who(entry), error=str(error))

    def _running(self, key: str) -> Entry:
        entry = self._ledger.entries.get(key)
        if entry is None:
            raise CannotHold(f"there is no tenant {key} any more: it has ended")
        if entry.state == "none":
            raise CannotHold(f"{entry.title} has no part of a GPU: {entry.why}")
        if entry.state == "reserved" or _is_being_started(entry.pid):
            raise CannotHold(f"{entry.title} is only being started; try again when it runs")
        return entry

    def _group(self, entry: Entry, holds: tuple[Hold, ...]) -> tuple[str, Group]:
        """Return the cgroup to freeze: that which is frozen already, where it is."""
        found = self._own(entry)
        named = next((hold.cgroup for hold in holds if hold.cgroup in found), next(iter(found)))
        return named, found[named]

    def _own(self, entry: Entry) -> dict[str, Group]:
        try:
            return own_groups(entry, self._ledger.entries, Cgroups.mounted())
        except NotOwn as error:
            if processes.look(entry.pid) is None:
                raise CannotHold(f"{entry.title} has ended") from error
            raise CannotHold(str(error)) from error

    def _freeze_again(self, entry: Entry, holds: tuple[Hold, ...]) -> None:
        cgroup, group = self._group(entry, holds)
        left = Cgroups.mounted().processes(cgroup)
        # Under v1 they would be kept from ending.
        if group.is_set() or all(map(processes.is_being_killed, left)):
            return
        for hold in holds:
            # Whoever had it frozen before us has let it go: from now on it is ours to thaw.
            if hold.by not in _NO_HOLD and (not hold.thaws or hold.cgroup != cgroup):
                with contextlib.suppress(OSError):  # a full disk: that it is held is written
                    self._ledger.holds.put(replace(hold, cgroup=cgroup, thaws=True))
        group.freeze()
        log("tenant-frozen-again", "warning", **_who(entry), cgroup=cgroup)

    def _kill(self, entry: Entry, why: str) -> None:
        """End it, in whichever of its groups that can be done; the others are thawed for it."""
        self._end_turns(entry.key)
        group, *others = self._own(entry).values()
        ended = group.kill(0.0)
        if not ended:
            for other in others:
                other.thaw()
            ended = group.kill(_KILL_SECONDS)
        if ended:
            log("tenant-killed", "warning", **_who(entry), why=why)
        else:
            log("kill-unfinished", "warning", **_who(entry), why=why)


def _is_being_started(pid: int) -> bool:
    """Whether it is its runtime's code still, which somebody waits for."""
    try:
        return processes.is_nobodys_program(pid)
    except OSError:
        return False


def _thaws(before: tuple[Hold, ...], cgroup: str, group: Group) -> bool:
    """Whether the group is ours to thaw: nobody but us has it frozen."""
    ours = next((hold.thaws for hold in before if hold.cgroup == cgroup), None)
    return not group.is_set() if ours is None else ours


def _thaw(said: Hold) -> None:
    group = group_of(said.cgroup, Cgroups.mounted())
    if group is not None:
        group.thaw()


def _who(entry: Entry) -> dict[str, str]:
    return {"tenant": entry.key, "id": entry.id, "name": entry.title}
