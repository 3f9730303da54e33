# SPDX-License-Identifier: Apache-2.0
"""A metric family: its name, type, labels, and the function that returns its samples. Pure.

Base units: bytes, seconds, and ratios from 0 to 1. Some label values are chosen by the container
(its name); the library escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from gpushare.client import Metrics
    from gpushare.metrics_schema import CardMetrics, TenantCardMetrics, TenantMetrics

MetricType = Literal["gauge", "counter", "histogram"]
Labels = tuple[str, ...]
ContainerCard = tuple["TenantMetrics", "TenantCardMetrics"]

OF_NODE: Final[Labels] = ("node",)
OF_CARD: Final[Labels] = ("node", "gpu_uuid", "gpu_index", "model")
OF_TENANT: Final[Labels] = (
    *("node", "container_id", "container", "pod", "namespace", "mode", "policy"),
)
OF_CONTAINER: Final[Labels] = (
    *("node", "gpu_uuid", "gpu_index", "container_id", "container", "pod", "namespace"),
    *("mode", "policy"),
)


@dataclass(frozen=True)
class Snapshot:
    """The metrics at one moment; `metrics` is None if the daemon did not respond."""

    node: str
    metrics: Metrics | None

    @property
    def cards(self) -> Sequence[CardMetrics]:
        """The cards; empty if the daemon did not respond."""
        return () if self.metrics is None else self.metrics.cards

    @property
    def tenants(self) -> Sequence[TenantMetrics]:
        """The containers that have an allocation."""
        return () if self.metrics is None else self.metrics.tenants

    @property
    def parts(self) -> Sequence[ContainerCard]:
        """Each container with each of its cards."""
        return [(tenant, part) for tenant in self.tenants for part in tenant["cards"]]


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


def card_family(name: str, text: str, value: Callable[[CardMetrics], float | None]) -> Family:
    """Return a family with one value for each card; None means unknown, without a series."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for card in snapshot.cards:
            figure = value(card)
            if figure is not None:
                yield card_labels(snapshot, card), figure

    return Family(name, "gauge", OF_CARD, text, samples)


def container_family(
    name: str,
    text: str,
    value: Callable[[TenantMetrics, TenantCardMetrics], float | None],
    kind: MetricType = "gauge",
) -> Family:
    """Return a family with one value for each container and card; None means unknown."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for tenant, part in snapshot.parts:
            figure = value(tenant, part)
            if figure is not None:
                yield container_labels(snapshot, tenant, part), figure

    return Family(name, kind, OF_CONTAINER, text, samples)


def labeled_container_family(
    name: str,
    text: str,
    label: str,
    values: Callable[[TenantMetrics, TenantCardMetrics], Iterable[tuple[str, float]]],
) -> Family:
    """Return a family with values by an additional label."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        for tenant, part in snapshot.parts:
            labels = container_labels(snapshot, tenant, part)
            for value, figure in values(tenant, part):
                yield (*labels, value), figure

    return Family(name, "gauge", (*OF_CONTAINER, label), text, samples)


def card_labels(snapshot: Snapshot, card: CardMetrics) -> Labels:
    """Return the values of OF_CARD."""
    return snapshot.node, card["uuid"], str(card["index"]), card["model"]


def tenant_labels(snapshot: Snapshot, tenant: TenantMetrics) -> Labels:
    """Return the values of OF_TENANT."""
    namespace, pod, name = pod_names(tenant)
    return (
        *(snapshot.node, tenant["id"], name, pod, namespace),
        *(tenant["mode"], tenant["policy"]),
    )


def container_labels(snapshot: Snapshot, tenant: TenantMetrics, part: TenantCardMetrics) -> Labels:
    """Return the values of OF_CONTAINER."""
    node, *rest = tenant_labels(snapshot, tenant)
    return (node, part["uuid"], str(part["index"]), *rest)


def pod_names(tenant: TenantMetrics) -> tuple[str, str, str]:
    """Return (namespace, pod, container) of team/train-0/main; for other names, only the container.

    A name that a user of the host chose is never a pod's name, whatever its form.
    """
    parts = tenant["name"].split("/")
    if len(parts) == 3 and tenant["engine"] != "host":
        return parts[0], parts[1], parts[2]
    return "", "", tenant["name"]
