# SPDX-License-Identifier: Apache-2.0
"""The families of the node and its daemon. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from gpushare.exporter.family import OF_NODE, Family, Kind, Sample, Snapshot
from gpushare.figures import BOUNDS

if TYPE_CHECKING:
    from gpushare.figures import NodeFigures

#: What a refusal of an operation may be for, gpushare/protocol, and late: nobody waited for it.
REASONS: Final = ("refused", "usage", "unknown", "forbidden", "error", "late")
_BOUNDS: Final = (*(repr(float(bound)) for bound in BOUNDS), "+Inf")


def _of_node(
    name: str, text: str, value: Callable[[NodeFigures], float], kind: Kind = "gauge"
) -> Family:
    def samples(snapshot: Snapshot) -> Iterable[Sample]:
        if snapshot.metrics is not None:
            yield (snapshot.node,), value(snapshot.metrics.node)

    return Family(name, kind, OF_NODE, text, samples)


def _up(snapshot: Snapshot) -> Iterable[Sample]:
    yield (snapshot.node,), float(snapshot.metrics is not None)


def _durations(snapshot: Snapshot) -> Iterable[Sample]:
    if snapshot.metrics is None:
        return
    for stage, row in snapshot.metrics.node["operations"].items():
        counts = map(float, accumulate(row["buckets"]))
        buckets = list(zip(_BOUNDS, counts, strict=True))
        yield (snapshot.node, stage), (buckets, row["seconds"])


def _failures(snapshot: Snapshot) -> Iterable[Sample]:
    if snapshot.metrics is None:
        return
    for stage, row in snapshot.metrics.node["operations"].items():
        for reason in REASONS:
            yield (snapshot.node, stage, reason), row["failures"].get(reason, 0)


def _events(snapshot: Snapshot) -> Iterable[Sample]:
    if snapshot.metrics is not None:
        for event, count in snapshot.metrics.node["events"].items():
            yield (snapshot.node, event), count


def _build(snapshot: Snapshot) -> Iterable[Sample]:
    if snapshot.metrics is not None:
        said = snapshot.metrics.node
        versions = (said["version"], said["driver_version"], said["cuda_version"])
        yield (snapshot.node, *versions), 1.0


FAMILIES: Final = (
    Family("gpushare_up", "gauge", OF_NODE, "1 where gpushared answers.", _up),
    Family(
        "gpushare_build_info",
        "gauge",
        (*OF_NODE, "version", "driver", "cuda"),
        "1, with the versions of gpushared and of the driver.",
        _build,
    ),
    _of_node(
        "gpushare_start_time_seconds",
        "When gpushared was started: from there its counters count.",
        lambda node: node["started"],
    ),
    _of_node(
        "gpushare_driver_up",
        "1 where the driver is loaded and its figures are not old.",
        lambda node: float(node["driver_up"]),
    ),
    _of_node(
        "gpushare_scheduler_up",
        "1 where the scheduler holds shares of compute.",
        lambda node: float(node["scheduler_up"]),
    ),
    Family(
        "gpushare_hook_duration_seconds",
        "histogram",
        (*OF_NODE, "stage"),
        "How long gpushared took for what the start or the end of a container waits for.",
        _durations,
    ),
    Family(
        "gpushare_hook_failures_total",
        "counter",
        (*OF_NODE, "stage", "reason"),
        "How often it was not done, by the code of the refusal; late: nobody waited any more.",
        _failures,
    ),
    Family(
        "gpushare_events_total",
        "counter",
        (*OF_NODE, "event"),
        "How often each event was logged that the node's history keeps.",
        _events,
    ),
    _of_node(
        "gpushare_history_lost_events_total",
        "Events that could not be kept in the node's history.",
        lambda node: node["history_lost"],
        "counter",
    ),
)
