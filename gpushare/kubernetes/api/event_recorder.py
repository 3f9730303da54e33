# SPDX-License-Identifier: Apache-2.0
"""Writes Kubernetes events: the same one again only raises its count, and no object causes many.

The core API's `v1` Event: every version from 1.30 to 1.37 takes it, and `kubectl describe` shows
its count and its times. An event of the server lives for an hour; a later one is a new object.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final

from gpushare.kubernetes.api.server import ApiExists, ApiNotFound, ApiServer, Object, path_of

EVENTS: Final = "/api/v1/events"
COMPONENT: Final = "gpushare"
#: A pod's allowance of new events: as many at once, and one more in each period.
BURST: Final = 10
PERIOD_SECONDS: Final = 30.0
#: How often the count of an event is written at most.
COUNT_SECONDS: Final = 10.0
_FORGET_SECONDS: Final = 3000.0  # before the server does
_MOST_KEPT: Final = 4096
_NAME_CHARACTERS: Final = 253


@dataclass(frozen=True)
class PodContainer:
    """A container of a pod, as Kubernetes names it."""

    namespace: str
    pod: str
    uid: str  # the pod's
    container: str

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.pod

    @property
    def reference(self) -> Object:
        """The object of the event."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": self.namespace,
            "name": self.pod,
            "uid": self.uid,
            "fieldPath": f"spec.containers{{{self.container}}}",
        }


@dataclass(frozen=True)
class NodeObject:
    """A node, as Kubernetes names it. Events of what has no namespace are in `default`."""

    name: str
    uid: str
    namespace: str = "default"
    container: str = ""

    @property
    def reference(self) -> Object:
        """The object of the event."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}


@dataclass(frozen=True)
class KubernetesEvent:
    """Something to tell the user of a pod or node; `number` makes it the same after a restart."""

    about: PodContainer | NodeObject
    reason: str
    type: str
    message: str
    at: float  # seconds since the epoch
    number: str


@dataclass
class _KeptEvent:
    path: str
    first: float
    last: float
    count: int = 1
    written: int = 0  # the count that the server has
    due: float = 0.0  # monotonic: when the count may be written


@dataclass
class _PodAllowance:
    left: float
    at: float


@dataclass
class EventRecorder:
    """Writes the events of `node` and of the pods on it; not thread-safe."""

    api: ApiServer
    node: str
    clock: Callable[[], float] = time.monotonic
    suppressed: int = 0  # events of pods that caused too many
    _kept: OrderedDict[tuple[PodContainer | NodeObject, str, str], _KeptEvent] = field(
        default_factory=OrderedDict
    )
    _pods: OrderedDict[str, _PodAllowance] = field(default_factory=OrderedDict)

    def record(self, event: KubernetesEvent) -> None:
        """Write `event`, or raise the count of the same one; ApiError."""
        key = (event.about, event.reason, event.message)
        kept = self._kept.get(key)
        if kept is not None and event.at - kept.first < _FORGET_SECONDS:
            kept.count += 1
            kept.last = max(kept.last, event.at)
            self._kept.move_to_end(key)
            return
        if not self._admits(event.about.uid):
            self.suppressed += 1
            return
        body = self._body(event)
        path = path_of(EVENTS, namespace=event.about.namespace)
        try:
            self.api.create(path, body)
        except ApiExists:
            pass  # before a restart of gpushare-node
        except ApiNotFound:
            return  # the namespace is being deleted
        name = str(body["metadata"]["name"])
        due = self.clock() + COUNT_SECONDS
        self._kept[key] = _KeptEvent(
            path_of(EVENTS, name, event.about.namespace), event.at, event.at, written=1, due=due
        )
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    def flush(self) -> None:
        """Write the counts that are due; ApiError."""
        now = self.clock()
        for key, kept in list(self._kept.items()):
            if kept.count == kept.written or now < kept.due:
                continue
            kept.due = now + COUNT_SECONDS
            body: Object = {"count": kept.count, "lastTimestamp": timestamp(kept.last)}
            try:
                self.api.patch(kept.path, body)
            except ApiNotFound:
                del self._kept[key]  # it expired, or its namespace is gone
            else:
                kept.written = kept.count

    def _admits(self, uid: str) -> bool:
        now = self.clock()
        allowance = self._pods.setdefault(uid, _PodAllowance(BURST, now))
        self._pods.move_to_end(uid)
        if len(self._pods) > _MOST_KEPT:
            self._pods.popitem(last=False)
        allowance.left = min(BURST, allowance.left + (now - allowance.at) / PERIOD_SECONDS)
        allowance.at = now
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True

    def _body(self, event: KubernetesEvent) -> Object:
        about = event.about
        text = f"{about.uid}\n{about.container}\n{event.reason}\n{event.message}\n{event.number}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        start = about.name[: _NAME_CHARACTERS - len(digest) - 1].rstrip(".-")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{start}.{digest}", "namespace": about.namespace},
            "involvedObject": about.reference,
            "reason": event.reason,
            "message": event.message,
            "type": event.type,
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": timestamp(event.at),
            "lastTimestamp": timestamp(event.at),
            "count": 1,
        }


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as the API writes it (RFC 3339, UTC)."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
