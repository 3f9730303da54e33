# SPDX-License-Identifier: Apache-2.0
"""What a tenant surely has of a card: the driver's figures against the tenant's own account.

Neither is one moment. The driver is asked for one process after another, and while it answers
memory moves from one process of a tenant to the next: the sum may then be twice what there ever
was. And an account is what the tenant writes. So of each process counts

    the least of: its account before the look, after it, and what the driver says
    and what the driver says above all that its account said in the last seconds

and only what two looks in a row agree on, of a process that was there in both. A tenant that does
what it may has the second part small, for its account is charged before the driver is asked; one
that goes round its account has all in the second part, at once. Who also forges its account, so
that it explains the most and holds the least, or moves on by a new process for each look, has more
than it may in every look of the last seconds, which no sum that is read piece by piece has by
chance.

Managed memory the driver tells of no process: what the account claims of it is believed upwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.pages.account import Claim

#: How long an account goes on explaining what it said, and a whole period of looks that all agree.
PERIOD_NS: Final = 6 * 10**9
_LOOKS: Final = 12  # in a period, at least


class Told(NamedTuple):
    """What a process says that the driver should have of it, and what it maps of others'."""

    own_bytes: int
    mapped_bytes: int


_NOTHING: Final = Told(0, 0)


@dataclass(frozen=True)
class Said:
    """What a tenant's processes say of one card, by (pid as they number it, start time)."""

    told: Mapping[tuple[int, int], Told] = field(default_factory=dict)
    managed_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        """What they have together, but for managed memory."""
        return sum(told.own_bytes for told in self.told.values())


@dataclass(frozen=True)
class Figures:
    """Bytes: what a tenant surely has, and what it has at the most."""

    sure_bytes: int
    most_bytes: int
    alone_bytes: int  # what it had surely, were this look alone believed
    contexts: int  # processes that the driver lists: each has one at least


@dataclass(frozen=True)
class _Process:
    """One process as of the last look."""

    least_bytes: int
    explained_bytes: int  # in this period, the most that its account said
    explained_before_bytes: int  # ... in the one before


def said(claims: Iterable[Claim], number: int) -> Said:
    """Return what `claims` say of the tenant's card `number`; who has two records has both."""
    told: dict[tuple[int, int], Told] = {}
    managed = 0
    for claim in claims:
        held = claim.held[number]
        kept = held.kinds[abi.KIND_MANAGED]
        managed += kept
        before = told.get((claim.pid, claim.starttime), _NOTHING)
        told[claim.pid, claim.starttime] = Told(
            before.own_bytes + max(0, held.held_bytes - kept),
            before.mapped_bytes + held.imported_bytes,
        )
    return Said(told, managed)


class Course:
    """One tenant on one card, from look to look."""

    def __init__(self, now_ns: int) -> None:
        self._processes: dict[tuple[int, int], _Process] = {}
        self._managed_bytes = 0
        self._since_ns = now_ns
        self._looks = 0
        self._least_bytes = 0  # of what the driver said in this period
        self._least_before_bytes: int | None = None  # None: too few looks

    def look(
        self, now_ns: int, seen: Sequence[tuple[Process, int]], before: Said, after: Said
    ) -> Figures:
        """Return what there is to say after a look.

        `seen` are the tenant's processes with what the driver says of each, `before` and `after`
        what they said before it was asked and afterwards.
        """
        if now_ns - self._since_ns >= PERIOD_NS:
            self._begin_period(now_ns)
        now = {
            (process.pid, process.starttime): self._process(process, size, before, after)
            for process, size in seen
        }
        agreed = sum(
            min(found.least_bytes, self._processes[which].least_bytes)
            for which, found in now.items()
            if which in self._processes
        )
        managed = min(before.managed_bytes, after.managed_bytes)
        total = sum(size for _, size in seen)
        sure = max(agreed + min(managed, self._managed_bytes), self._always(total))
        most = max(total, before.own_bytes, after.own_bytes)
        self._processes, self._managed_bytes = now, managed
        most += max(before.managed_bytes, after.managed_bytes)
        alone = sum(found.least_bytes for found in now.values()) + managed
        return Figures(sure, most, max(alone, sure), len(seen))

    def _process(self, process: Process, size: int, before: Said, after: Said) -> _Process:
        number = process.namespaced_pid, process.starttime
        first, second = before.told.get(number, _NOTHING), after.told.get(number, _NOTHING)
        known = self._processes.get((process.pid, process.starttime), _Process(0, 0, 0))
        explained = max(known.explained_bytes, sum(first), sum(second))
        beyond = size - max(explained, known.explained_before_bytes)
        least = min(first.own_bytes, second.own_bytes, size) + max(0, beyond)
        return _Process(least, explained, known.explained_before_bytes)

    def _always(self, total: int) -> int:
        """Return what the driver said in every look of a whole period and this one; else 0."""
        self._least_bytes = min(self._least_bytes, total) if self._looks else total
        self._looks += 1
        before = self._least_before_bytes
        return 0 if before is None else min(before, self._least_bytes)

    def _begin_period(self, now_ns: int) -> None:
        self._least_before_bytes = self._least_bytes if self._looks >= _LOOKS else None
        self._since_ns, self._looks, self._least_bytes = now_ns, 0, 0
        self._processes = {
            which: _Process(known.least_bytes, 0, known.explained_bytes)
            for which, known in self._processes.items()
        }
