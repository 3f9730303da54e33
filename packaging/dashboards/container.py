# SPDX-License-Identifier: Apache-2.0
"""The dashboard of one or more containers and pods."""

from __future__ import annotations

from typing import Final

from . import queries
from .dashboard import Row
from .panel import BYTES, COUNT, RATIO, SECONDS, Panel, Query, graph, stat
from .queries import CONTAINER_NAME, by_container, of_part

_SELECTED: Final = 'container=~"$container"'
_PART: Final = f"{queries.PART},{_SELECTED}"
_TENANT: Final = f"{queries.TENANT},{_SELECTED}"


def _now(title: str, name: str, unit: str) -> Panel:
    return stat(title, f"sum({of_part(name, _PART)})", unit)


def _each(expression: str, what: str = "") -> Query:
    return Query(by_container(expression), f"{CONTAINER_NAME} {what}".rstrip())


def _rate(counter: str) -> str:
    return queries.per_second(counter, _PART)


_UTILIZATION: Final = of_part("cores_utilization_ratio", _PART)
_DENIED: Final = of_part("allocations_denied_total", _TENANT)
_LAST_ACTIVE: Final = of_part("last_active_timestamp_seconds", _PART)

ROWS: Final = (
    Row(
        "Now",
        (
            _now("Memory quota", "memory_quota_bytes", BYTES),
            _now("Memory limit", "memory_limit_bytes", BYTES),
            _now("Memory used", "memory_used_bytes", BYTES),
            _now("Memory peak", "memory_peak_bytes", BYTES),
            _now("Cores requested", "cores_quota_ratio", RATIO),
            stat("Cores used", f"sum(max without (source) ({_UTILIZATION}))", RATIO),
        ),
    ),
    Row(
        "Memory",
        (
            graph(
                *("Memory by kind", BYTES),
                Query(f"sum by (kind) ({of_part('memory_used_bytes', _PART)})", "{{kind}}"),
                stacked=True,
            ),
            graph(
                *("Memory used and limit", BYTES),
                _each(of_part("memory_used_bytes", _PART), "used"),
                _each(of_part("memory_limit_bytes", _PART), "limit"),
            ),
            graph("Denied allocations", COUNT, _each(f"increase({_DENIED}[$__rate_interval])")),
            graph(
                *("Memory over quota", BYTES),
                _each(of_part("memory_over_quota_bytes", _PART)),
                text="Memory above the limit, by the driver's figures.",
            ),
        ),
    ),
    Row(
        "Evicted and oversubscribed",
        (
            graph(
                *("Memory in host memory", BYTES),
                _each(of_part("memory_evicted_bytes", _PART), "evicted"),
                _each(of_part("memory_oversubscribed_bytes", _PART), "oversubscribed"),
                _each(of_part("memory_oversubscribed_limit_bytes", _PART), "reserved"),
                text="Evicted GPU memory, and managed memory beyond the quota with its bound.",
                width=8,
            ),
            graph(
                *("Eviction state", COUNT),
                Query(
                    f"sum by (state) ({of_part('eviction_state', _TENANT)})",
                    "{{state}}",
                ),
                stacked=True,
                text="How many of the containers are in each state.",
                width=8,
            ),
            graph(
                *("Wait for a restore", SECONDS),
                _each(of_part("restore_wait_seconds", _TENANT)),
                text="A program uses CUDA while its container is evicted, and no card has room.",
                width=8,
            ),
        ),
    ),
    Row(
        "Compute",
        (
            graph(
                *("Compute received and requested", RATIO),
                _each(_rate("gpu_time_seconds_total"), "received"),
                _each(of_part("cores_quota_ratio", _PART), "requested"),
            ),
            graph(
                *("Throttled time", SECONDS, _each(_rate("throttled_seconds_total"))),
                text="Seconds per second that threads wait at the launch gate.",
            ),
            graph(
                *("Frozen", COUNT),
                Query(f"max by (by) ({of_part('frozen', _TENANT)})", "by {{by}}"),
                most=1,
            ),
            graph(
                *("Time since the card was used", SECONDS),
                Query(f"time() - {by_container(_LAST_ACTIVE, 'max')}", CONTAINER_NAME),
            ),
        ),
    ),
)
