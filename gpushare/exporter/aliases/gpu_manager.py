# SPDX-License-Identifier: Apache-2.0
"""The names of gpu-manager 1.1 (pkg/services/display): percent, MiB and cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from gpushare.exporter.metric_family import (
    Family,
    Labels,
    MetricSample,
    Snapshot,
    mode_of,
    of_pods,
    pod_names,
)

if TYPE_CHECKING:
    from gpushare.protocol.rows import TenantCard, TenantRow

_MIB: Final = 1 << 20
_LABELS: Final[Labels] = ("pod_name", "namespace", "node", "container_name")


def _family(  # noqa: PLR0913 - a row of a table
    name: str,
    text: str,
    source: str,
    label: str,
    value: Callable[[TenantRow, TenantCard], float | None],
    *,
    each: bool = True,
) -> Family:
    """Return a family with a value for each card (`each`) and for all cards of a container."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        found: dict[Labels, float] = {}
        for tenant in of_pods(snapshot):
            namespace, pod, container = pod_names(tenant)
            labels = (pod, namespace, snapshot.node, container)
            figures = [(part, value(tenant, part)) for part in tenant["cards"]]
            known = [(part, figure) for part, figure in figures if figure is not None]
            if each:
                found |= {(*labels, f"gpu{part['index']}"): figure for part, figure in known}
            if len(known) == len(figures):
                found |= {(*labels, "total"): sum(figure for _, figure in known)}
        return found.items()

    source = f"gpushare_container_{source}"
    return Family(name, "gauge", (*_LABELS, label), text, samples, source)


def _requested_cards(tenant: TenantRow, part: TenantCard) -> float:
    return 1.0 if mode_of(tenant) == "exclusive" else part["cores"] / 100


FAMILIES: Final = (
    _family(
        "container_gpu_utilization",
        "Utilization of the card by the container, in percent.",
        "cores_utilization_ratio",
        "gpu",
        lambda _, part: part["utilization"],
    ),
    _family(
        "container_request_gpu_utilization",
        "Compute that the container requests, in cards.",
        "cores_quota_ratio",
        "req_of_gpu",
        _requested_cards,
        each=False,
    ),
    _family(
        "container_gpu_memory_total",
        "Memory that the container uses, in MiB.",
        "memory_used_bytes",
        "gpu_memory",
        lambda _, part: part["used_bytes"] / _MIB,
    ),
    _family(
        "container_request_gpu_memory",
        "Memory that the container requests, in MiB.",
        "memory_quota_bytes",
        "req_of_gpu_memory",
        lambda _, part: part["quota_bytes"] / _MIB,
        each=False,
    ),
)
