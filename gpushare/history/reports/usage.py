# SPDX-License-Identifier: Apache-2.0
"""The reports usage, waste, chargeback and idle: what containers had of their cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpushare.history.reports.columns import (
    BYTES,
    COUNT,
    GIB_HOURS,
    GPU_SECONDS,
    MONEY,
    PERCENT,
    SECONDS,
    TEXT,
    TIME,
    ReportColumn,
    ReportRecord,
)
from gpushare.history.reports.holding import GAP_SECONDS, GIB, HOUR

if TYPE_CHECKING:
    from gpushare.history.reports.holding import Holding
    from gpushare.history.reports.source import ReportSource


def _distinct(keys: Iterable[Any]) -> int:
    return len(set(keys))


_CONTAINER: Final = ReportColumn("container", "Container", TEXT, "The container.")
_CARD: Final = ReportColumn(
    "card", "Card", TEXT, "The card's index, or its UUID if it was exchanged."
)
_CONTAINERS: Final = ReportColumn(
    "containers",
    "Containers",
    COUNT,
    "How many containers these are.",
    combine=_distinct,
    optional=True,
)
_COMPUTE: Final = (
    ReportColumn(
        "gpu_seconds",
        "GPU hours",
        GPU_SECONDS,
        "Compute received: time of a whole card.",
        combine=sum,
    ),
    ReportColumn(
        "requested_gpu_seconds",
        "GPU requested",
        GPU_SECONDS,
        "Compute requested: the time of a whole card that the requested cores amount to, except "
        "while evicted.",
        combine=sum,
        optional=True,
    ),
)
_MEMORY: Final = (
    ReportColumn("gib_hours", "GiB hours", GIB_HOURS, "Memory in use, over time.", combine=sum),
    ReportColumn(
        "requested_gib_hours",
        "GiB requested",
        GIB_HOURS,
        "The memory quota, over time, except while evicted.",
        combine=sum,
        optional=True,
    ),
)
_COMPUTE_RATIO: Final = ReportColumn(
    "compute_ratio",
    "GPU used",
    PERCENT,
    "Compute received, of the compute requested.",
    ratio=("gpu_seconds", "requested_gpu_seconds"),
)
_MEMORY_RATIO: Final = ReportColumn(
    "memory_ratio",
    "GiB used",
    PERCENT,
    "Memory in use, of the quota.",
    ratio=("gib_hours", "requested_gib_hours"),
)

USAGE: Final = (
    _CONTAINERS,
    ReportColumn(
        "card_seconds",
        "Card time",
        SECONDS,
        "How long they had an allocation, except while evicted, added up over containers and their "
        "cards.",
        combine=sum,
        optional=True,
    ),
    *_COMPUTE,
    _COMPUTE_RATIO,
    *_MEMORY,
    _MEMORY_RATIO,
    ReportColumn("peak_bytes", "Peak", BYTES, "The most memory of one container.", combine=max),
    ReportColumn(
        "throttled_seconds",
        "Throttled",
        SECONDS,
        "Time that threads waited at the launch gate.",
        combine=sum,
        optional=True,
    ),
    ReportColumn(
        "denied",
        "Denied",
        COUNT,
        "Allocations that the quota denied.",
        combine=sum,
        optional=True,
    ),
)


def usage(source: ReportSource) -> Iterable[ReportRecord]:
    """Yield what each container used of each card."""
    for one in source.holdings:
        yield ReportRecord(
            one.labels,
            {
                **_figures(one),
                "card_seconds": one.seconds,
                "peak_bytes": one.most_bytes,
                "throttled_seconds": one.throttled_seconds,
                "denied": one.denied,
            },
        )


WASTE: Final = (
    _CONTAINER,
    _CARD,
    *_MEMORY,
    _MEMORY_RATIO,
    ReportColumn(
        "memory_below_seconds",
        "GiB below",
        SECONDS,
        "How long less than --below of the memory quota was in use.",
        combine=sum,
    ),
    *_COMPUTE,
    _COMPUTE_RATIO,
    ReportColumn(
        "compute_below_seconds",
        "GPU below",
        SECONDS,
        "How long less than --below of the requested compute was received.",
        combine=sum,
    ),
    ReportColumn(
        "wasted_gib_hours",
        "GiB wasted",
        GIB_HOURS,
        "Quota that was not in use, except while evicted.",
        combine=sum,
        optional=True,
    ),
    ReportColumn(
        "wasted_gpu_seconds",
        "GPU wasted",
        GPU_SECONDS,
        "Compute that was requested and not received.",
        combine=sum,
        optional=True,
    ),
)


def waste(source: ReportSource) -> Iterable[ReportRecord]:
    """Yield the containers that were below what they requested for long enough."""
    for one in source.holdings:
        memory, compute = one.memory_below.total, one.compute_below.total
        if max(memory, compute) < source.least_seconds:
            continue
        unused = one.requested_gib_hours - one.gib_hours
        yield ReportRecord(
            one.labels,
            {
                **_figures(one),
                "memory_below_seconds": memory,
                "compute_below_seconds": compute,
                "wasted_gib_hours": max(0.0, unused),
                "wasted_gpu_seconds": max(0.0, one.requested_gpu_seconds - one.gpu_seconds),
            },
        )


CHARGEBACK: Final = (
    _CONTAINERS,
    *_COMPUTE,
    ReportColumn(
        "charged_gpu_seconds",
        "GPU charged",
        GPU_SECONDS,
        "Compute that is charged, by prices.basis.",
        combine=sum,
    ),
    *_MEMORY,
    ReportColumn(
        "charged_gib_hours",
        "GiB charged",
        GIB_HOURS,
        "Memory that is charged, by prices.basis.",
        combine=sum,
    ),
    ReportColumn(
        "cost",
        "Cost",
        MONEY,
        "The charged compute and memory at the prices of gpushare.yaml.",
        combine=sum,
    ),
)


_CHARGED: Final[Mapping[str, Callable[[float, float], float]]] = {
    "used": lambda used, _requested: used,
    "requested": lambda _used, requested: requested,
    "larger": max,
}


def chargeback(source: ReportSource) -> Iterable[ReportRecord]:
    """Yield what each container is charged for each card."""
    charge = _CHARGED[source.prices.basis]
    for one in source.holdings:
        rate = source.prices.rate_of(one.model)
        gpu_seconds = charge(one.gpu_seconds, one.requested_gpu_seconds)
        gib_hours = charge(one.gib_hours, one.requested_gib_hours)
        yield ReportRecord(
            one.labels,
            {
                **_figures(one),
                "charged_gpu_seconds": gpu_seconds,
                "charged_gib_hours": gib_hours,
                "cost": gpu_seconds / HOUR * rate.gpu_hour + gib_hours * rate.gib_hour,
            },
        )


IDLE: Final = (
    _CONTAINER,
    _CARD,
    ReportColumn(
        "idle_seconds",
        "Idle",
        SECONDS,
        "How long it held memory and received no compute.",
        combine=sum,
    ),
    ReportColumn("longest_seconds", "Longest", SECONDS, "The longest such time.", combine=max),
    ReportColumn("idle_since", "Since", TIME, "Since when it is idle; empty: not at the end."),
    ReportColumn(
        "idle_gib_hours", "GiB hours", GIB_HOURS, "Memory that it held in that time.", combine=sum
    ),
    ReportColumn("held_bytes", "Held", BYTES, "The same memory, on average.", combine=sum),
)


def idle(source: ReportSource) -> Iterable[ReportRecord]:
    """Yield who held memory of a card and did nothing for long enough."""
    for one in source.holdings:
        run = one.idle
        if run.longest < source.least_seconds:
            continue
        held = one.idle_byte_seconds / run.total if run.total else None
        still = run.since if one.last >= source.end - GAP_SECONDS else None
        yield ReportRecord(
            one.labels,
            {
                **_names(one),
                "idle_seconds": run.total,
                "longest_seconds": run.longest,
                "idle_since": still,
                "idle_gib_hours": one.idle_byte_seconds / GIB / HOUR,
                "held_bytes": held,
            },
        )


def _names(one: Holding) -> dict[str, Any]:
    return {"container": one.labels["container"], "card": one.labels["card"]}


def _figures(one: Holding) -> dict[str, Any]:
    return {
        **_names(one),
        "containers": one.key,
        "gpu_seconds": one.gpu_seconds,
        "requested_gpu_seconds": one.requested_gpu_seconds,
        "gib_hours": one.gib_hours,
        "requested_gib_hours": one.requested_gib_hours,
    }
