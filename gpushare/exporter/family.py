# SPDX-License-Identifier: Apache-2.0
"""What a family of metrics is: a name, a type, labels, and where its figures come from. Pure.

Base units: bytes, seconds, and parts of a card from 0 to 1. A label's value is a container's own
choice in places (its name): how they are escaped is the library's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from gpushare.client import Metrics
    from gpushare.figures import CardFigures, TenantCardFigures, TenantFigures

Kind = Literal["gauge", "counter", "histogram"]
Labels = tuple[str, ...]
Part = tuple["TenantFigures", "TenantCardFigures"]

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
    """What was there at one moment; `metrics` is None where the daemon did not answer."""

    node: str
    metrics: Metrics | None

    @property
    def cards(self) -> Sequence[CardFigures]:
        """The cards; none where the daemon did not answer."""
        return () if self.metrics is None else self.metrics.cards

    @property
    def tenants(self) -> Sequence[TenantFigures]:
        """The containers that have a part of a card."""
        return () if self.metrics is None else self.metrics.tenants

    @property
    def parts(self) -> Sequence[Part]:
        """Each container with each of its cards."""
        return [(tenant, part) for tenant in self.tenants for part in tenant["cards"]]


#: The values of the labels, and the figure; of a histogram how many were within each bound, and
#: their sum.
Sample = tuple[Labels, "float | tuple[list[tuple[str, float]], float]"]


@dataclass(frozen=True)
class Family:
    """One family; the name of a counter ends with _total."""

    name: str
    kind: Kind
    labels: Labels
    help: str
    samples: Callable[[Snapshot], Iterable[Sample]]


def of_cards(
    name: str,
    text: str,
    value: Callable[[CardFigures], float | None],
    kind: Kind = "gauge",
) -> Family:
    """Return a family with one figure a card; None: it is not known, and has no series."""

    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        for card in snapshot.cards:
            figure = value(card)
            if figure is not None:
                yield card_labels(snapshot, card), figure

    return Family(name, kind, OF_CARD, text, samples)


def of_parts(
    name: str,
    text: str,
    value: Callable[[TenantFigures, TenantCardFigures], float | None],
    kind: Kind = "gauge",
) -> Family:
    """Return a family with one figure a container and card; None: it is not known."""

    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        for tenant, part in snapshot.parts:
            figure = value(tenant, part)
            if figure is not None:
                yield part_labels(snapshot, tenant, part), figure

    return Family(name, kind, OF_CONTAINER, text, samples)


def of_parts_by(
    name: str,
    text: str,
    label: str,
    values: Callable[[TenantFigures, TenantCardFigures], Iterable[tuple[str, float]]],
    kind: Kind = "gauge",
) -> Family:
    """Return a family with figures by one label more."""

    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        for tenant, part in snapshot.parts:
            labels = part_labels(snapshot, tenant, part)
            for said, figure in values(tenant, part):
                yield (*labels, said), figure

    return Family(name, kind, (*OF_CONTAINER, label), text, samples)


def card_labels(snapshot: Snapshot, card: CardFigures) -> Labels:
    """Return the values of OF_CARD."""
    return snapshot.node, card["uuid"], str(card["index"]), card["model"]


def tenant_labels(snapshot: Snapshot, tenant: TenantFigures) -> Labels:
    """Return the values of OF_TENANT."""
    namespace, pod, name = names(tenant)
    return (
        *(snapshot.node, tenant["id"], name, pod, namespace),
        *(tenant["mode"], tenant["policy"]),
    )


def part_labels(snapshot: Snapshot, tenant: TenantFigures, part: TenantCardFigures) -> Labels:
    """Return the values of OF_CONTAINER."""
    node, *rest = tenant_labels(snapshot, tenant)
    return (node, part["uuid"], str(part["index"]), *rest)


def names(tenant: TenantFigures) -> tuple[str, str, str]:
    """Return (namespace, pod, container) of team/train-0/main; of another name the last alone.

    A name that a user of the host chose is no pod's, whatever it looks like.
    """
    parts = tenant["name"].split("/")
    if len(parts) == 3 and tenant["engine"] != "host":
        return parts[0], parts[1], parts[2]
    return "", "", tenant["name"]
