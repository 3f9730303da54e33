# SPDX-License-Identifier: Apache-2.0
"""Turns what gpushared recorded of the pods on this node into Kubernetes events.

Most comes from the history. Refused allocations and long waits are figures of a container, which
the history does not record: they are compared from one look to the next. A message contains only
figures of the pod itself, and never the name of another container: pods of other namespaces are not
for its user to know.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from gpushare.client import Client
from gpushare.kubernetes.api.server import ApiExists, ApiNotFound, ApiServer, Object, path_of
from gpushare.quota.effective_request import NOTHING_REQUESTED
from gpushare.quota.size import format_size

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
MESSAGE_CHARACTERS: Final = 1024  # Source: events in k8s.io/client-go
ANOTHER: Final = "another container"


@dataclass(frozen=True)
class PodEventText:
    """The `reason` and `type` of an event, and its message: `{field}` is a field of the history."""

    reason: str
    type: str
    message: str


#: The reason and the message, by the history's event (gpushare/events.py).
_NORMAL: Final = {
    "tenant-not-allocated": ("GpuNotAllocated", "{reason}"),
    "tenant-request-adjusted": ("GpuRequestAdjusted", "{note}"),
    "tenant-resized": ("GpuQuotaChanged", "the operator of the node changed the quota"),
    "tenant-thawed": ("GpuResumed", "the processes were resumed"),
    "tenant-evicted": (
        "GpuEvicted",
        (
            "{evicted_bytes} of GPU memory went to host memory; the program gets it back when it "
            "uses CUDA and the card has room"
        ),
    ),
    "tenant-restored": ("GpuRestored", "{restored_bytes} of GPU memory is on the card again"),
    "tenant-moved": ("GpuMoved", "the GPU memory was moved from card {from_cards} to card {cards}"),
    "over-quota-cleared": ("GpuWithinQuota", "is within its quota again"),
    "over-quota-thawed": ("GpuWithinQuota", "is within its quota again and was resumed"),
    "card-recovered": ("GpuHealthy", "the card of this container is healthy again"),
}
_WARNING: Final = {
    "request-refused": ("GpuRefused", "{error}"),
    "tenant-frozen": ("GpuFrozen", "all processes were frozen: {reason}"),
    "tenant-stop-requested": (
        "GpuStopRequested",
        "the processes were sent {signal} ({reason}); SIGKILL follows after {timeout} s",
    ),
    "tenant-killed": ("GpuKilled", "all processes were killed: {reason}"),
    "tenant-hung": ("GpuHung", "work is pending on the card that does not seem to end"),
    "tenant-bypasses-mps": ("GpuBypassesMps", "a process uses the card without its MPS server"),
    "tenant-lost-mps-server": (
        "GpuLostMpsServer",
        "a fatal fault of {cause} ended the work of all clients of the MPS server",
    ),
    "tenant-restore-waits": ("GpuRestoreWaits", "the program waits for its GPU memory: {reason}"),
    "tenant-eviction-lost": ("GpuMemoryLost", "the driver cannot restore the GPU memory: {error}"),
    "tenant-idle-warned": (
        "GpuIdle",
        (
            "holds {used_bytes} of GPU memory and has not used its cards for {idle_seconds} s; "
            "action of the node: {action}"
        ),
    ),
    "over-quota-detected": (
        "GpuOverQuota",
        "uses {used_bytes} of GPU memory, over its limit of {limit_bytes}",
    ),
    "over-quota-warned": (
        "GpuOverQuota",
        (
            "uses {used_bytes} of GPU memory, over its limit of {limit_bytes}. Free memory, or it "
            "is frozen"
        ),
    ),
    "over-quota-frozen": (
        "GpuOverQuota",
        "used {used_bytes} of GPU memory, over its limit of {limit_bytes}, and was frozen",
    ),
    "over-quota-killed": (
        "GpuOverQuota",
        "used {used_bytes} of GPU memory, over its limit of {limit_bytes}, and was killed",
    ),
    "memory-shortfall-reported": (
        "GpuMemoryShortfall",
        "the card could not provide {requested_bytes} that are within the quota",
    ),
    "gate-bypass-detected": (
        "GpuComputeOverShare",
        "work bypasses the launch gate of its compute share",
    ),
    "card-unhealthy": ("GpuUnhealthy", "a card of this container is unhealthy: {reason}"),
}
TEXTS: Final = {
    event: PodEventText(reason, kind, message)
    for kind, texts in ((NORMAL, _NORMAL), (WARNING, _WARNING))
    for event, (reason, message) in texts.items()
}
#: Not in the history; from the figures of the container.
OUT_OF_MEMORY: Final = PodEventText(
    "GpuOutOfMemory",
    WARNING,
    "an allocation of GPU memory was refused: it would exceed the quota of {quota_bytes}",
)
THROTTLED: Final = PodEventText(
    "GpuThrottled",
    NORMAL,
    "waited for the card for {percent} % of the last minute: its compute share is {cores} %",
)


def message_of(
    text: PodEventText, fields: Mapping[str, Any], container: str, others: Collection[str] = ()
) -> str:
    """Return the message of an event of `container`, without the names in `others`."""
    shown = {name: _shown(name, value) for name, value in fields.items()}
    try:
        message = text.message.format_map(shown)
    except KeyError:  # of a gpushared of another version
        message = text.message.partition("{")[0]
    message = without_names(message.rstrip(": "), others)
    return f"container {container}: {message}"[:MESSAGE_CHARACTERS]


def without_names(text: str, names: Collection[str]) -> str:
    """Return `text` with each of `names` replaced, the longest first."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", ANOTHER, text)
    return text


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    return str(value)


#: How far back a new gpushare-node looks: what it reports again has the same name, and is dropped.
CATCH_UP_SECONDS: Final = 300.0
#: A container that waits for more of a minute than this is throttled.
THROTTLED_RATIO: Final = 0.5
_WINDOW: Final = "60s"


class EventReporter:
    """Reports the events of the pods on a node, one step at a time; not thread-safe."""

    def __init__(
        self,
        source: Client,
        recorder: EventRecorder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._clock = clock
        self._since = clock() - CATCH_UP_SECONDS
        self._after = 0
        self._denied: dict[str, int] | None = None
        self._throttled: set[str] = set()

    def step(self) -> None:
        """Report what is new; UserError of the daemon or the API server, to be tried again."""
        rows = self._source.tenants(everything=True)
        pods = {row["key"]: pod for row in rows if (pod := pod_of(row["pod"]))}
        for event in self._source.history(since=self._since, after=self._after):
            text = None if _is_of_a_sidecar(event) else TEXTS.get(event["event"])
            for pod in _about(event, rows, pods):
                if text is None:
                    break
                message = message_of(
                    text, {"reason": "", **event["fields"]}, pod.container, _others(pod, pods)
                )
                number = f"{event['boot_id']} {event['number']}"
                self._recorder.record(
                    KubernetesEvent(pod, text.reason, text.type, message, event["time"], number)
                )
            self._after = event["number"]
        now = self._clock()
        for text, row, fields in self._noticed(rows):
            pod = pods.get(row["key"])
            if pod is not None:
                message = message_of(text, fields, pod.container)
                self._recorder.record(
                    KubernetesEvent(pod, text.reason, text.type, message, now, str(now))
                )
        self._recorder.flush()

    def _noticed(
        self, rows: Iterable[Mapping[str, Any]]
    ) -> Iterator[tuple[PodEventText, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield containers of which allocations were refused, or that began to wait for long."""
        denied, throttled = {}, set()
        for row in rows:
            denied[row["key"]] = row["denied_allocations"]
            # A first look has nothing to compare with, and a restart of gpushared counts anew.
            before = None if self._denied is None else self._denied.get(row["key"], 0)
            if before is not None and row["denied_allocations"] > before and row["cards"]:
                yield OUT_OF_MEMORY, row, {"quota_bytes": row["cards"][0]["quota_bytes"]}
            for card in row["cards"]:
                key = f"{row['key']} {card['uuid']}"
                ratio = card["compute"]["throttled"].get(_WINDOW) or 0.0
                if ratio > THROTTLED_RATIO and card["is_capped"]:
                    throttled.add(key)
                    if key not in self._throttled:
                        cores = f"{card['share_percent'] or card['cores']:g}"
                        yield THROTTLED, row, {"percent": round(100 * ratio), "cores": cores}
        self._denied, self._throttled = denied, throttled


def pod_of(pod: Mapping[str, object] | None) -> PodContainer | None:
    """Return the container of a TenantPod; None without one, or without the UID for an event."""
    if not pod or not pod["uid"]:
        return None
    names = (str(pod[key]) for key in ("namespace", "name", "uid", "container"))
    return PodContainer(*names)


def pod_of_event(event: Mapping[str, Any]) -> PodContainer | None:
    """Return the container that an event without a tenant is about: a refused one.

    The event has a TenantPod, or the name NAMESPACE/POD/CONTAINER and the pod's UID.
    """
    fields = event["fields"]
    if "pod" in fields:
        return pod_of(fields["pod"])
    parts, uid = str(event["name"]).split("/"), str(fields.get("pod_uid") or "")
    if len(parts) != 3 or not uid or not all(parts):
        return None
    return PodContainer(parts[0], parts[1], uid, parts[2])


def _is_of_a_sidecar(event: Mapping[str, Any]) -> bool:
    """Whether it says that a container without a GPU requested none, as most of a pod's do."""
    reason = str(event["fields"].get("reason", ""))
    return event["event"] == "tenant-not-allocated" and reason.startswith(NOTHING_REQUESTED)


def _about(
    event: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    pods: Mapping[str, PodContainer],
) -> list[PodContainer]:
    """Return the containers that an event is about: its own, or those that use its card."""
    own = pods.get(event["key"]) or pod_of_event(event)
    if own is not None:
        return [own]
    if event["key"] or event["id"] or not event["card"]:
        return []
    users = [row["key"] for row in rows if event["card"] in {card["uuid"] for card in row["cards"]}]
    return [pods[key] for key in users if key in pods]


def _others(pod: PodContainer, pods: Mapping[str, PodContainer]) -> list[str]:
    """Return the names by which a text for `pod` could name a container of another namespace."""
    foreign = [other for other in pods.values() if other.namespace != pod.namespace]
    names = [f"{other.namespace}/{other.pod}" for other in foreign]
    return [*names, *(f"{other.namespace}/{other.pod}/{other.container}" for other in foreign)]


# --- the writer of Kubernetes events: the same one again only raises its count ---
#
# The core API's `v1` Event: every version from 1.30 to 1.37 takes it, and `kubectl describe` shows
# its count and its times. An event of the server lives for an hour; a later one is a new object.

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
        """The object of the event.

        It has no fieldPath: whether that is one of the containers, the init containers or the
        ephemeral containers says only the pod, which gpushare-node may not read.
        """
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": self.namespace,
            "name": self.pod,
            "uid": self.uid,
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
