# SPDX-License-Identifier: Apache-2.0
"""Each query of a dashboard returns what Prometheus has of real containers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from gpushare.cli.metrics import DASHBOARDS, read
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .scraped import POD, Exporter, Prometheus
from .waiting import wait_until

pytestmark = pytest.mark.needs("prometheus")
GIB = 1 << 30
HOUR = 3600
#: Of the time ranges that the dashboards offer, in seconds.
RANGES = (HOUR // 2, HOUR, 24 * HOUR, 168 * HOUR)
VARIABLES = ("node", "mode", "card", "namespace", "pod", "container")
EVERYTHING = dict.fromkeys(VARIABLES, ".*")
SCRAPE_SECONDS = 1


class PanelQuery(NamedTuple):
    """One query of a panel."""

    panel: str
    expression: str
    instant: bool


class ScrapedNode(NamedTuple):
    """A node whose metrics a Prometheus has."""

    prometheus: Prometheus
    container: str
    card: str


@pytest.fixture(scope="module")
def node() -> Iterator[ScrapedNode]:
    """A pod's container has worked, and was denied memory; another container is of no pod."""
    with Stack(cards=2) as stack:
        stack.start_daemon()
        exporter = Exporter.of(stack)
        prometheus = Prometheus(exporter)
        asked = {"gpushare.io/memory": "4GiB", "gpushare.io/cores": "30"}
        pod = Bundle(stack, annotations={**POD, **asked})
        other = Bundle(stack, quota={"memory": "2GiB"})
        with pod.run() as tenant, other.run() as second:
            second.start()
            tenant.start()
            tenant.ask(f"alloc {GIB}")
            denied = f'gpushare_container_allocations_denied_total{{container_id="{pod.id}"}}'
            prometheus.program.wait_until(lambda: values(prometheus, denied) == [0])
            tenant.ask(f"alloc {8 * GIB}")
            tenant.ask("spin 1000000 100")
            wait_until(lambda: values(prometheus, denied) == [1])
            [(labels, _)] = exporter.series(
                "gpushare_container_memory_quota_bytes", container_id=pod.id
            )
            yield ScrapedNode(prometheus, pod.id, labels["gpu_uuid"])
        pod.remove()
        other.remove()


def values(prometheus: Prometheus, expression: str) -> list[float]:
    return [float(row["value"][1]) for row in prometheus.query(expression)]


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read(name))
    return found


def queries(name: str) -> list[PanelQuery]:
    return [
        PanelQuery(f"{panel['title']} {target['refId']}", target["expr"], target["instant"])
        for panel in dashboard(name)["panels"]
        for target in panel.get("targets", ())
    ]


def filled(expression: str, variables: Mapping[str, str], seconds: int) -> str:
    """Return the expression as Grafana sends it, for a graph of 1000 points."""
    interval = max(seconds // 1000, SCRAPE_SECONDS)
    rates = max(interval + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)
    known = {"__range": f"{seconds}s", "__rate_interval": f"{rates}s", **variables}
    return re.sub(r"\$(\w+)", lambda found: known[found[1]], expression)


def answer(
    node: ScrapedNode, query: PanelQuery, variables: Mapping[str, str], seconds: int
) -> list[dict[str, Any]]:
    expression = filled(query.expression, variables, seconds)
    if query.instant:
        return node.prometheus.query(expression)
    now, step = time.time(), max(seconds // 1000, SCRAPE_SECONDS)
    found: list[dict[str, Any]] = node.prometheus.call(
        "query_range",
        query=expression,
        start=str(now - seconds // step * step),
        end=str(now),
        step=str(step),
    ).get("result", [])
    return found


def wait_for(
    node: ScrapedNode, query: PanelQuery, variables: Mapping[str, str], seconds: int
) -> None:
    wait_until(lambda: bool(answer(node, query, variables, seconds)))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_query_returns_data_in_each_time_range(node: ScrapedNode, name: str) -> None:
    for query in queries(name):
        wait_for(node, query, EVERYTHING, RANGES[0])
    silent = [
        (query.panel, seconds)
        for query in queries(name)
        for seconds in RANGES
        if not answer(node, query, EVERYTHING, seconds)
    ]
    assert silent == []
