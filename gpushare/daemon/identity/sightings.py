# SPDX-License-Identifier: Apache-2.0
"""Who the processes are that the driver names by number.

A number alone names nobody. The driver lists a client under the number of the process that made
it, also after that has ended where its descriptor was passed on; and the kernel gives the number to
somebody else then. So a descriptor of the process (pidfd_open(2)) is held from the first look at
which it is listed: once that process has ended, the number is a ghost's for as long as it goes on
being listed, whoever has it now. Who has nothing of the driver open is no client of it either, but
has the number of one that ended before anybody looked.

Whose a process is, its cgroups say. What two tenants' cgroups say differently, nobody knows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Process

_AGAIN_SECONDS: Final = 2.0  # a process may be moved to another cgroup

#: What tells the tenants that a process's cgroups name: none, one, or several.
Keys = Callable[[int], frozenset[str]]


class _NoDescriptor(Exception):
    """None is left, so it cannot be told who a process is."""


@dataclass(frozen=True)
class Sighting:
    """A number in the driver's list; `process` None: a ghost, it names no process that is there."""

    pid: int
    process: Process | None
    keys: frozenset[str] = frozenset()  # of the tenants that it belongs to
    holds: bool = False  # it was found to have the driver open

    @property
    def key(self) -> str | None:
        """The tenant whose process it is; None: nobody's, or it cannot be told."""
        [*keys] = self.keys
        return keys[0] if len(keys) == 1 and self.process is not None else None

    @property
    def is_ambiguous(self) -> bool:
        """Whether several tenants' cgroups claim it."""
        return len(self.keys) > 1


class Sightings:
    """The processes that the driver lists, from look to look; the truth thread's.

    `holds` is whether a process has the driver open.
    """

    def __init__(self, holds: Callable[[int], bool] = lambda _: True) -> None:
        self._holds = holds
        self._seen: dict[int, Sighting] = {}
        self._descriptors: dict[int, int] = {}  # by pid
        self._asked: dict[int, float] = {}  # when its cgroups were, by pid
        self._poll = select.poll()
        self._version: object = None

    def look(self, pids: Iterable[int], keys: Keys, version: object) -> dict[int, Sighting]:
        """Return who each of `pids` is, which the driver lists now.

        `keys` is asked again of all as soon as `version`, what its answers rest on, is another.
        """
        listed = set(pids)
        for pid in self._seen.keys() - listed:
            self._forget(pid)
        self._note_ended()
        if version is not self._version:
            self._asked.clear()
            self._version = version
        now = time.monotonic()
        for pid in listed:
            sighting = self._seen.get(pid)
            if sighting is None:
                with contextlib.suppress(_NoDescriptor):  # nothing is said of it, until later
                    sighting = self._seen[pid] = Sighting(pid, self._open(pid))
            if sighting is None:
                continue
            if sighting.process is not None and now - self._asked.get(pid, 0.0) >= _AGAIN_SECONDS:
                self._asked[pid] = now
                holds = sighting.holds or self._holds(pid)
                told = keys(pid) if holds else frozenset()
                self._seen[pid] = replace(sighting, keys=told, holds=holds)
        return dict(self._seen)

    def is_there(self, sighting: Sighting, keys: Keys) -> bool:
        """Whether the process goes on, and is still who it was, before something is done to it."""
        self._note_ended()
        now = self._seen.get(sighting.pid)
        if now is None or now.process is None or now.process != sighting.process:
            return False
        return keys(sighting.pid) == sighting.keys

    def descriptor(self, pid: int) -> int | None:
        """Return the pidfd of a listed process that has not ended, which stays ours."""
        return self._descriptors.get(pid)

    def close(self) -> None:
        """Forget everybody."""
        for pid in list(self._seen):
            self._forget(pid)

    def _open(self, pid: int) -> Process | None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in {errno.ESRCH, errno.EINVAL}:  # ended, or no process's number
                return None
            raise _NoDescriptor from error
        # Looked at after it was opened: if the descriptor's has not ended then, it is this one.
        process = processes.look(pid)
        if process is None or _has_ended(descriptor):
            os.close(descriptor)
            return None
        self._descriptors[pid] = descriptor
        self._poll.register(descriptor, select.POLLIN)
        return process

    def _note_ended(self) -> None:
        """Make ghosts of those that have ended, and are listed nevertheless."""
        ended = {descriptor for descriptor, _ in self._poll.poll(0)} if self._descriptors else set()
        for pid in [pid for pid, held in self._descriptors.items() if held in ended]:
            self._close(pid)
            self._seen[pid] = Sighting(pid, None)

    def _forget(self, pid: int) -> None:
        self._close(pid)
        self._asked.pop(pid, None)
        del self._seen[pid]

    def _close(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)


def _has_ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
