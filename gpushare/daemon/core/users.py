# SPDX-License-Identifier: Apache-2.0
"""The users of this host. A uid that subuid(5) gives a user to map counts as that user.

What a limit allows one user is for an account and its ranges together. Ranges may overlap: a uid in
two of them counts for both owners. A uid of no account and no range is somebody's who can make many
of them (a user namespace, a file system), and all such are one user.

Files are read when they have changed. Other sources (nsswitch.conf(5)) may not answer, so that a
thread asks them, again after some minutes; until it has, their uids are such strangers.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import pwd
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: Whose a uid is: names of accounts, and numbers of those that are not in passwd(5).
Owners = frozenset[str]

STRANGERS: Final = frozenset({"strangers"})
_LOCAL: Final = frozenset({"files", "compat", "systemd", "db"})
_MOST_LINES: Final = 65_536
_MOST_KNOWN: Final = 4096
_LOOK_SECONDS: Final = 1.0
_ASK_SECONDS: Final = 300.0
_NEVER: Final[tuple[Owners, float]] = (frozenset(), -math.inf)
_LIBRARIES: Final = ("libsubid.so.5", "libsubid.so.4", "libsubid.so.3")


@dataclass(frozen=True)
class _Files:
    """The accounts by uid, and the ranges: first uid, number of uids, and the owner."""

    names: dict[int, str] = field(default_factory=dict)
    ranges: tuple[tuple[int, int, str], ...] = ()
    asks_subids: bool = False  # nsswitch.conf names another source of them


class HostUsers:
    """The users by the files in `etc`; for any thread.

    `ask` returns the owners of a uid by sources that may take long; `start` has a function done
    without waiting for it.
    """

    def __init__(
        self,
        etc: Path = Path("/etc"),
        ask: Callable[[int, bool], Owners] = lambda uid, subids: _asked(uid, subids=subids),
        start: Callable[[Callable[[], None]], None] = lambda job: threading.Thread(
            target=job, name="users", daemon=True
        ).start(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._etc, self._ask, self._start, self._clock = etc, ask, start, clock
        self._looked = -_LOOK_SECONDS
        self._local: dict[int, Owners] = {}  # by the files
        self._files = _Files()
        self._stamp: tuple[object, ...] = ()
        # By other sources, and when they were asked.
        self._told: OrderedDict[int, tuple[Owners, float]] = OrderedDict()
        self._asking = False
        self._lock = threading.Lock()

    def owners(self, uid: int) -> Owners:
        """Return who `uid` is, or belongs to; never empty."""
        if uid == 0:
            return frozenset({"root"})
        with self._lock:
            self._read()
            subids = self._files.asks_subids
            local, (_, asked) = self._of_files(uid), self._told.get(uid, _NEVER)
            is_due = self._clock() - asked > _ASK_SECONDS
            if is_due and (not local or subids) and not self._asking:
                self._asking = True
                self._start(lambda: self._learn(uid, subids=subids))
            told, _ = self._told.get(uid, _NEVER)
        return local | told or STRANGERS

    def _of_files(self, uid: int) -> Owners:
        known = self._local.get(uid)
        if known is None:
            files = self._files
            owners = {name for first, count, name in files.ranges if 0 <= uid - first < count}
            if uid in files.names:
                owners.add(files.names[uid])
            if len(self._local) >= _MOST_KNOWN:
                self._local.clear()
            known = self._local[uid] = frozenset(owners)
        return known

    def are_one(self, uid: int, other: int) -> bool:
        """Whether two uids may be one user's."""
        return uid == other or not self.owners(uid).isdisjoint(self.owners(other))

    def title(self, uid: int) -> str:
        """Return a name for what the user of `uid` may have in all."""
        return min(self.owners(uid))

    def _learn(self, uid: int, *, subids: bool) -> None:
        try:
            self._told[uid] = self._ask(uid, subids), self._clock()
            if len(self._told) > _MOST_KNOWN:
                self._told.popitem(last=False)
        finally:
            self._asking = False

    def _read(self) -> None:
        """Read the files again if they have changed, and the last look was a second ago."""
        if self._clock() - self._looked < _LOOK_SECONDS:
            return
        self._looked = self._clock()
        paths = [self._etc / name for name in ("passwd", "subuid", "nsswitch.conf")]
        stamp = tuple(map(_stamp, paths))
        if stamp != self._stamp:
            names = {uid: name for name, uid in _accounts(_lines(paths[0]))}
            by_number = {str(uid): name for uid, name in names.items()}
            ranges = tuple(
                (first, count, by_number.get(owner, owner))
                for owner, first, count in _ranges(_lines(paths[1]))
            )
            self._files = _Files(names, ranges, _asks_subids(_lines(paths[2])))
            self._stamp = stamp
            self._told.clear()
            self._local.clear()


def _stamp(path: Path) -> object:
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def _lines(path: Path) -> list[str]:
    with suppress(OSError), path.open(errors="replace") as file:
        return [line.strip() for line in itertools.islice(file, _MOST_LINES)]
    return []


def _accounts(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        with suppress(ValueError, IndexError):
            parts = line.split(":")
            yield parts[0], int(parts[2])


def _ranges(lines: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    for line in lines:
        with suppress(ValueError):
            owner, first, count = line.split(":")
            yield owner, int(first), int(count)


def _asks_subids(lines: Iterable[str]) -> bool:
    sources = (line.partition(":")[2].split() for line in lines if line.startswith("subid:"))
    return any(source not in _LOCAL for words in sources for source in words)


def _asked(uid: int, *, subids: bool) -> Owners:
    """Ask the sources of nsswitch.conf; may take as long as they do."""
    owners = set[str]()
    for owner in {uid, *(_subid_owners(uid) if subids else ())}:
        with suppress(KeyError):  # the number as well: subuid(5) may name it by that
            owners |= {pwd.getpwuid(owner).pw_name, str(owner)}
    return frozenset(owners)


def _subid_owners(uid: int) -> list[int]:
    """Return the owners of ranges with `uid` by shadow's library (subid.h); none without it."""
    for name in _LIBRARIES:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            owners = ctypes.POINTER(ctypes.c_uint)()
            count = library.subid_get_uid_owners(ctypes.c_uint(uid), ctypes.byref(owners))
            return [int(owners[number]) for number in range(max(0, count))]
    return []
