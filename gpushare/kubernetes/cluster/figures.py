# SPDX-License-Identifier: Apache-2.0
"""Cards and containers from the metrics of a node's exporter. Pure.

Source of the format: Prometheus, "Text-based format". Only samples of gpushare's gauges and
counters are read: docs/reference/metrics.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from gpushare.kubernetes.cluster import ClusterCard, ClusterContainer

_SAMPLE: Final = re.compile(r'(gpushare_\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_CARD: Final = "gpushare_card_"
_CONTAINER: Final = "gpushare_container_"
#: The state of a container that does not run, by the metric and its label `by`.
_STOPPED: Final = (
    ("stopping", "", "stopping"),
    ("frozen", "operator", "paused"),
    ("frozen", "idle", "paused"),
    ("frozen", "audit", "frozen"),
)


class BadFigures(ValueError):
    """The answer is not that of a gpushare-exporter."""


class MetricValue(NamedTuple):
    """One sample."""

    name: str
    labels: Mapping[str, str]
    value: float


class NodeFigures(NamedTuple):
    """What a node's exporter knows."""

    cards: list[ClusterCard]
    containers: list[ClusterContainer]
    versions: Mapping[str, str]  # of gpushared and the driver; empty: gpushared does not answer
    problem: str  # why the figures are incomplete or stale; empty: they are not


def node_figures(node: str, text: str) -> NodeFigures:
    """Return what `text`, an exporter's answer, says about the node `node`; BadFigures."""
    try:
        return _figures(node, list(read_samples(text)))
    except KeyError as error:
        raise BadFigures(f"a metric of another version of gpushare: no {error.args[0]}") from error
    except (ValueError, OverflowError) as error:
        raise BadFigures(f"not a metric: {error}") from error


def _figures(node: str, samples: list[MetricValue]) -> NodeFigures:
    of_node = {name: value for name, labels, value in samples if set(labels) == {"node"}}
    versions = next((labels for name, labels, _ in samples if name == "gpushare_build_info"), {})
    problem = ""
    if not of_node["gpushare_up"]:
        problem = "gpushared does not answer"
    elif not of_node.get("gpushare_driver_up"):
        problem = "the driver is not loaded, or its figures are stale"
    cards = [_card(node, one) for one in _grouped(samples, _CARD, ("gpu_uuid",))]
    both = ("container_id", "gpu_uuid")
    containers = [_container(node, one) for one in _grouped(samples, _CONTAINER, both)]
    return NodeFigures(cards, containers, versions, problem)


def read_samples(text: str) -> Iterator[MetricValue]:
    """Yield the samples of gpushare's metrics."""
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is not None:
            labels = {name: _plain(value) for name, value in _LABEL.findall(found[2] or "")}
            yield MetricValue(found[1], labels, float(found[3]))


def _plain(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)


class _Group:
    """The samples of one card or container, by their names without the prefix."""

    def __init__(self) -> None:
        self.samples: dict[str, list[MetricValue]] = {}

    def labels(self, name: str) -> Mapping[str, str]:
        return self.samples[name][0].labels

    def value(self, name: str) -> float:
        return self.samples[name][0].value

    def maybe(self, name: str) -> float | None:
        return self.value(name) if name in self.samples else None

    def size(self, name: str) -> int:
        return int(self.value(name))

    def has(self, name: str, **labels: str) -> bool:
        """Whether a sample with these labels is not 0."""
        found = self.samples.get(name, ())
        return any(one.value and labels.items() <= one.labels.items() for one in found)


def _grouped(samples: list[MetricValue], prefix: str, by: tuple[str, ...]) -> list[_Group]:
    """Return a group for each value of the labels `by`; samples that lack one are in several."""
    groups: dict[tuple[str, ...], _Group] = {}
    of_prefix = [one for one in samples if one.name.startswith(prefix)]
    for one in of_prefix:
        if set(by) <= set(one.labels):
            group = groups.setdefault(tuple(one.labels[name] for name in by), _Group())
            group.samples.setdefault(one.name.removeprefix(prefix), []).append(one)
    for one in of_prefix:
        if not set(by) <= set(one.labels):
            for key, group in groups.items():
                if one.labels.get(by[0]) == key[0]:
                    group.samples.setdefault(one.name.removeprefix(prefix), []).append(one)
    return list(groups.values())


def _card(node: str, card: _Group) -> ClusterCard:
    info = card.labels("info")
    return ClusterCard(
        node=node,
        source="exporter",
        index=int(info["gpu_index"]),
        uuid=info["gpu_uuid"],
        model=info["model"],
        memory_bytes=card.size("memory_capacity_bytes"),
        allocated_bytes=card.size("memory_allocated_bytes"),
        burst_granted_bytes=card.size("memory_burst_bytes"),
        non_tenant_bytes=card.size("memory_non_tenant_bytes"),
        available_bytes=card.size("memory_available_bytes"),
        cores_available=100 - round(card.value("cores_allocated_ratio") * 100),
        tenants=card.size("tenants"),
        max_tenants=card.size("max_tenants"),
        mode=info["mode"],
        cordoned=bool(card.value("cordoned")),
        health=info["health"],
    )


def _container(node: str, part: _Group) -> ClusterContainer:
    labels = part.labels("memory_quota_bytes")
    used = part.samples.get("cores_utilization_ratio", [])
    source = used[0].labels["source"] if used else ""
    isolation = part.samples["isolation"]
    return {
        "namespace": labels["namespace"],
        "pod": labels["pod"],
        "container": labels["container"],
        "id": labels["container_id"],
        "node": node,
        "source": "exporter",
        "index": int(labels["gpu_index"]),
        "uuid": labels["gpu_uuid"],
        "used_bytes": int(sum(one.value for one in part.samples["memory_used_bytes"])),
        "quota_bytes": part.size("memory_quota_bytes"),
        "limit_bytes": part.size("memory_limit_bytes"),
        "cores": round(part.value("cores_quota_ratio") * 100),
        "cores_used": round(used[0].value * 100, 3) if used else None,
        "cores_source": {"nvml": "driver"}.get(source, source),
        "policy": part.labels("policy_info")["effective_policy"],
        "throttled": part.maybe("throttled_ratio"),
        "isolation": next((one.labels["level"] for one in isolation if one.value), ""),
        "class": part.labels("class_info")["class"],
        "priority": part.size("priority"),
        "forced_launches": part.size("forced_launches_total"),
        "is_hung": part.has("hung"),
        "state": next(
            (state for name, by, state in _STOPPED if part.has(name, **({"by": by} if by else {}))),
            "running",
        ),
    }
