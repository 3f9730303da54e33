# SPDX-License-Identifier: Apache-2.0
"""A metric family: its name, type, labels, and the function that returns its samples of a snapshot.

Base units: bytes, seconds, and ratios from 0 to 1. Some label values are chosen by the container
(its name); the library escapes them. The daemon is asked for a snapshot at most once a second,
independent of the number of clients.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.protocol.kubernetes import NODE_NAME

if TYPE_CHECKING:
    from gpushare.metrics_schema import Metrics
    from gpushare.protocol.rows import CardRow, TenantCard, TenantRow

#: Timeout of the daemon's response: Prometheus gives up after ten seconds by default.
ANSWER_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 1.0
MetricType = Literal["gauge", "counter", "histogram"]
Labels = tuple[str, ...]
ContainerCard = tuple["TenantRow", "TenantCard", Labels]

OF_NODE: Final[Labels] = ("node",)
OF_CARD: Final[Labels] = ("node", "gpu_uuid", "gpu_index", "model")
OF_TENANT: Final[Labels] = (
    "node",
    "container_id",
    "container",
    "pod",
    "namespace",
    "mode",
    "policy",
)
OF_CONTAINER: Final[Labels] = (
    "node",
    "gpu_uuid",
    "gpu_index",
    "container_id",
    "container",
    "pod",
    "namespace",
    "mode",
    "policy",
)


@dataclass(frozen=True)
class Snapshot:
    """The metrics at one moment; `metrics` is None if the daemon did not respond."""

    node: str
    metrics: Metrics | None
    taken: float = 0.0  # seconds since the epoch

    @property
    def cards(self) -> Sequence[CardRow]:
        """The cards; empty if the daemon did not respond."""
        return () if self.metrics is None else self.metrics.cards

    @property
    def tenants(self) -> Sequence[TenantRow]:
        """The containers that have an allocation."""
        return () if self.metrics is None else self.metrics.tenants

    def document(self) -> dict[str, Any]:
        """Return the rows for `kubectl gpushare`; no `daemon`: it did not respond.

        The host's own processes are not in it: a reader of a node's metrics need not know them.
        """
        daemon = None if self.metrics is None else self.metrics.node
        cards = [{**card, "non_tenant_processes": []} for card in self.cards]
        return {"cards": cards, "tenants": [*self.tenants], "daemon": daemon}

    @cached_property
    def parts(self) -> Sequence[ContainerCard]:
        """Each container with each of its cards, and the values of OF_CONTAINER."""
        return [
            (tenant, part, (node, part["uuid"], str(part["index"]), *rest))
            for tenant in self.tenants
            for node, *rest in [tenant_labels(self, tenant)]
            for part in tenant["cards"]
        ]


#: The values of the labels, and the value; for a histogram, the count within each bound, and the
#: sum.
MetricSample = tuple[Labels, "float | tuple[list[tuple[str, float]], float]"]


@dataclass(frozen=True)
class Family:
    """One family; the name of a counter ends in _total."""

    name: str
    kind: MetricType
    labels: Labels
    help: str
    samples: Callable[[Snapshot], Iterable[MetricSample]]


def card_labels(snapshot: Snapshot, card: CardRow) -> Labels:
    """Return the values of OF_CARD."""
    return snapshot.node, card["uuid"], str(card["index"]), card["model"]


#: The labels of a card's series, and the function that returns their values.
CardLabels = tuple[Labels, Callable[[Snapshot, "CardRow"], Labels]]


def card_family(
    name: str,
    text: str,
    value: Callable[[CardRow], float | None],
    labels: CardLabels = (OF_CARD, card_labels),
    *,
    kind: MetricType = "gauge",
) -> Family:
    """Return a family with one value for each card; None means unknown, without a series."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for card in snapshot.cards:
            figure = value(card)
            if figure is not None:
                yield labels[1](snapshot, card), figure

    return Family(name, kind, labels[0], text, samples)


def container_family(
    name: str,
    text: str,
    value: Callable[[TenantRow, TenantCard], float | None],
    kind: MetricType = "gauge",
) -> Family:
    """Return a family with one value for each container and card; None means unknown."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for tenant, part, labels in snapshot.parts:
            figure = value(tenant, part)
            if figure is not None:
                yield labels, figure

    return Family(name, kind, OF_CONTAINER, text, samples)


def labeled_container_family(
    name: str,
    text: str,
    label: str,
    values: Callable[[TenantRow, TenantCard], Iterable[tuple[str, float]]],
) -> Family:
    """Return a family with values by an additional label."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for tenant, part, labels in snapshot.parts:
            for value, figure in values(tenant, part):
                yield (*labels, value), figure

    return Family(name, "gauge", (*OF_CONTAINER, label), text, samples)


def alias_text(source: str, form: str = "") -> str:
    """Return the text of another exporter's name for `source`, whose values have this `form`."""
    return f"As {source}, {form}." if form else f"As {source}."


def figure(name: str) -> Callable[[CardRow], float | None]:
    """Return what reads the key `name` of a card's row."""
    return lambda card: cast("Mapping[str, float | None]", card)[name]


def tenant_labels(snapshot: Snapshot, tenant: TenantRow) -> Labels:
    """Return the values of OF_TENANT."""
    namespace, pod, name = pod_names(tenant)
    return (
        snapshot.node,
        tenant["id"],
        name,
        pod,
        namespace,
        mode_of(tenant),
        tenant["policy"],
    )


def mode_of(tenant: TenantRow) -> str:
    """Return whether a container has a share of its cards, or all of them."""
    return "exclusive" if tenant["isolation"] == "exclusive" else "shared"


def of_pods(snapshot: Snapshot) -> Sequence[TenantRow]:
    """Return the containers of pods, the only ones that other exporters know, by creation time.

    Of two containers with the same name, the later one counts.
    """
    found = (tenant for tenant in snapshot.tenants if all(pod_names(tenant)))
    return sorted(found, key=lambda tenant: tenant["created"])


def pod_names(tenant: TenantRow) -> tuple[str, str, str]:
    """Return (namespace, pod, container) of team/train-0/main; for other names, only the container.

    A name that a user of the host chose is never a pod's name, whatever its form.
    """
    parts = tenant["name"].split("/")
    if len(parts) == 3 and tenant["engine"] != "host":
        return parts[0], parts[1], parts[2]
    return "", "", tenant["name"]


class SnapshotSource:
    """The metrics of the daemon on `socket`, with the name of this node. Thread-safe.

    The name is `node`; if that is empty, the environment's NODE_NAME, which a pod has from
    Kubernetes, what gpushared has configured, or the name of the host.
    """

    def __init__(self, socket: Path, node: str = "") -> None:
        self.socket = socket
        self.error: UserError | None = None  # of the last query
        self._client = Client(socket, ANSWER_SECONDS, start_seconds=0)
        self._node = node or os.environ.get(NODE_NAME, "")
        self._configured = ""  # by gpushared, as of its last answer
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None

    def snapshot(self) -> Snapshot:
        """Return the current metrics, at most a second old.

        While a daemon that did not respond is asked again, nobody else waits for it.
        """
        last = self._last
        waits = last is None or last[1].metrics is not None
        if not self._lock.acquire(blocking=waits) and last is not None:
            return last[1]
        try:  # clients that waited for the lock get the same snapshot
            if self._last is None or time.monotonic() - self._last[0] >= FRESH_SECONDS:
                self._last = time.monotonic(), self._ask()
            return self._last[1]
        finally:
            self._lock.release()

    def _ask(self) -> Snapshot:
        try:
            metrics = self._client.metrics()
        except UserError as error:
            self.error = error
            return Snapshot(self._name(), None)
        self.error = None
        self._configured = metrics.node["node_name"]
        unique = replace(metrics, tenants=with_unique_ids(metrics.tenants))
        return Snapshot(self._name(), unique, time.time())

    def _name(self) -> str:
        return self._node or self._configured or gethostname()


def with_unique_ids(tenants: Sequence[TenantRow]) -> list[TenantRow]:
    """Return `tenants` with unique IDs.

    Two low-level runtimes with separate state folders may both have a container "test".
    """
    count = Counter(tenant["id"] for tenant in tenants)
    return [
        tenant if count[tenant["id"]] == 1 else {**tenant, "id": f"{tenant['id']}@{tenant['key']}"}
        for tenant in tenants
    ]
