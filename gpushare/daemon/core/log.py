# SPDX-License-Identifier: Apache-2.0
"""The log: one JSON object a line on stderr, each with a stable `event` name.

Values may come from a tenant; json escapes every control character, so none can forge a line.

Tenants and local users cause events, so each event is charged to its source, which has an allowance
in bytes. An event above the allowance is counted, neither written nor kept. `log-lines-suppressed`
reports how many there were. What a tenant's processes send, the audit's events of a tenant and its
other events have separate allowances: no message suppresses evidence. Events of root's own commands
are not charged.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.events import LASTING, SENT_BY_TENANTS, UNCHARGED

#: Called with (seconds since the epoch, event, level, fields) of each; they return at once.
Sink = Callable[[float, str, str, Mapping[str, Any]], None]

_STDERR: Final = 2
_encode: Final = json.JSONEncoder(separators=(",", ":"), default=str).encode
sinks: list[Sink] = []  # they are told of every event
_lock = threading.RLock()  # a signal's handler logs in the midst of another line
_counts: Counter[str] = Counter()


def event_count(event: str) -> int:
    """Return how often `event` was logged, since this process began."""
    return _counts[event]


def count_event(event: str) -> None:
    """Count `event` without logging it."""
    with _lock:
        _counts[event] += 1


_MOST_SOURCES: Final = 4096  # the one that was seen least recently is forgotten


@dataclass
class Allowance:
    """The amount that one source may still cause."""

    burst: float  # at once
    rate: float  # a second, in the long run
    at: float = 0.0  # when something was last taken, in seconds of a monotonic clock
    dropped: int = 0  # how often there was not enough left
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` at `now`; False, and nothing is taken, if less than that is left."""
        self.left = min(self.burst, self.left + max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.left < cost:
            self.dropped += 1
            return False
        self.left -= cost
        return True


class Allowances:
    """An allowance for each source: a uid, a tenant, a card. Not thread-safe."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._of: OrderedDict[str, Allowance] = OrderedDict()

    def take(self, source: str, now: float, cost: float = 1.0) -> bool:
        """Take `cost` of `source`'s allowance at `now`; False if less than that is left."""
        if source not in self._of:
            self._of[source] = Allowance(self._burst, self._rate, at=now)
            if len(self._of) > _MOST_SOURCES:
                self._of.popitem(last=False)
        self._of.move_to_end(source)
        return self._of[source].take(now, cost)


class LogBudget:
    """The bytes that each source may still log. `owner_of` returns the owner of a tenant's key.

    An owner is "uid N" for a host process of a user other than root, "namespace NAME" for a
    container of a pod, and "" otherwise.
    """

    def __init__(self) -> None:
        self.owner_of: Callable[[str], str] = lambda _key: ""
        self.suppressed: Counter[str] = Counter()  # lines by source, since the last report
        self._owners: OrderedDict[str, str] = OrderedDict()  # also of tenants that have ended
        self._sources = Allowances(256 << 10, 128.0)
        self._own = Allowances(1 << 20, 1024.0)  # of the daemon's own events, and of root's
        # A user may have many uids (subuid(5)): all users together have one more allowance.
        self._users = Allowance(1 << 20, 512.0)

    def admits(self, event: str, fields: Mapping[str, Any], size: int) -> bool:
        """Whether a line of `size` bytes may be written; False counts it as suppressed."""
        if event in UNCHARGED:
            return True
        now, owner = time.monotonic(), self.owner(fields)
        is_users, is_lasting = owner.startswith("uid "), event in LASTING
        source = owner if is_users else str(fields.get("tenant", ""))
        kind = "audit" if is_lasting else "sent" if event in SENT_BY_TENANTS else "event"
        name = f"{kind} {source}" if source else f"{event} {owner}"
        admitted = (self._sources if source else self._own).take(name, now, size)
        if admitted and is_users and not is_lasting:
            admitted = self._users.take(now, size)
        if not admitted:
            self.suppressed[name if len(self.suppressed) < _MOST_SUPPRESSED else "others"] += 1
        return admitted

    def owner(self, fields: Mapping[str, Any]) -> str:
        """Return what the history charges an event to: an owner, a tenant's key, or a card."""
        uid, key = fields.get("uid", 0), str(fields.get("tenant", ""))
        if uid:
            return f"uid {uid}"
        if key:
            return self._owner_of(key) or key
        if isinstance(pod := fields.get("pod"), dict):  # a container that was refused has no key
            return f"namespace {pod['namespace']}"
        return str(fields.get("container", "") or fields.get("card", ""))

    def _owner_of(self, key: str) -> str:
        owner = self.owner_of(key)
        if owner:
            self._owners[key] = owner
            if len(self._owners) > _MOST_OWNERS:
                self._owners.popitem(last=False)
        return owner or self._owners.get(key, "")


_MOST_OWNERS: Final = 4096
_MOST_SUPPRESSED: Final = 1024
_MOST_NAMED: Final = 8
_budget = LogBudget()


def set_owner_lookup(owner_of: Callable[[str], str]) -> None:
    """Have tenants' events charged to the owner that `owner_of` returns for a tenant's key."""
    _budget.owner_of = owner_of


def event_owner(fields: Mapping[str, Any]) -> str:
    """Return what an event with `fields` is charged to; "" for one of the daemon's own."""
    with _lock:
        return _budget.owner(fields)


def report_suppressed() -> None:
    """Log how many lines were suppressed since the last report, if there were any."""
    with _lock:
        suppressed, _budget.suppressed = _budget.suppressed, Counter()
    if suppressed:
        sources = dict(suppressed.most_common(_MOST_NAMED))
        level = "info" if all(source.startswith("sent ") for source in suppressed) else "warning"
        log("log-lines-suppressed", level, lines=suppressed.total(), sources=sources)


def log(event: str, level: str = "info", **fields: Any) -> None:
    """Write one line; `event` is a noun and a verb, `tenant-bound`, that never changes.

    A full or closed stderr loses the line: the daemon continues.
    """
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
    line = _encode({"time": stamp, "level": level, "event": event, **fields})
    with _lock:
        _counts[event] += 1
        if not _budget.admits(event, fields, len(line)):
            return
    with contextlib.suppress(OSError):
        os.write(_STDERR, line.encode() + b"\n")
    for sink in tuple(sinks):
        sink(now, event, level, fields)
