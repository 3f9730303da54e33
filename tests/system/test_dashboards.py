# SPDX-License-Identifier: Apache-2.0
"""Each query of a dashboard, ours or another's, returns what Prometheus has of real containers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from gpushare.cli.rules import DASHBOARDS, read
from gpushare.exporter.aliases import COMPAT
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .scraped import Exporter, Prometheus
from .waiting import wait_until

GIB = 1 << 30
HOUR = 3600
#: The time ranges that the dashboards offer, in seconds.
RANGES = (HOUR // 2, HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 48 * HOUR, 168 * HOUR)
POD = {
    "io.kubernetes.cri.container-name": "main",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "train-0",
    "io.kubernetes.cri.sandbox-namespace": "team",
    "io.kubernetes.cri.sandbox-uid": "0a1b",
}
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
        exporter = Exporter.of(stack, f"--compat={','.join(COMPAT)}")
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
        *("query_range",),
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


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_selected_container_has_data_and_another_node_has_none(
    node: ScrapedNode, name: str
) -> None:
    selected = {
        "node": "node-1",
        "mode": "shared",
        "card": node.card,
        "namespace": "team",
        "pod": "train-0",
        "container": "main",
    }
    for query in queries(name):
        wait_for(node, query, selected, HOUR)
    elsewhere = {**EVERYTHING, "node": "node-2"}
    assert [query.panel for query in queries(name) if answer(node, query, elsewhere, HOUR)] == []


def options(node: ScrapedNode, variable: Mapping[str, Any]) -> set[str]:
    """Return the values of a variable, as Grafana's Prometheus data source finds them."""
    text = filled(variable["query"]["query"], EVERYTHING, HOUR)
    if listed := re.fullmatch(r"label_values\((.*), (\w+)\)", text):
        return set(node.prometheus.call(f"label/{listed[2]}/values", **{"match[]": listed[1]}))
    result = re.fullmatch(r"query_result\((.*)\)", text)
    assert result, text
    # Grafana's /g, and JavaScript's name of a group.
    regex = variable["regex"].removeprefix("/").removesuffix("/g").replace("(?<", "(?P<")
    found = set()
    for row in node.prometheus.query(result[1]):
        labels = ",".join(f'{key}="{row["metric"][key]}"' for key in sorted(row["metric"]))
        groups = [match.groupdict() for match in re.finditer(regex, f"{{{labels}}} 1 1")]
        [shown] = [group["text"] for group in groups if group["text"]]
        [value] = [group["value"] for group in groups if group["value"]]
        assert re.fullmatch(r"node-1/\d", shown)
        found.add(value)
    return found


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_variable_lists_what_there_is(node: ScrapedNode, name: str) -> None:
    found = {
        variable["name"]: options(node, variable)
        for variable in dashboard(name)["templating"]["list"]
        if variable["type"] == "query"
    }
    assert (found["node"], found["mode"]) == ({"node-1"}, {"shared"})
    assert (found["namespace"], found["pod"]) == ({"team"}, {"train-0"})
    assert node.card in found["card"]
    assert len(found["card"]) == 2
    assert "main" in found.get("container", {"main"})


@pytest.mark.parametrize("exporter", COMPAT)
def test_each_name_of_another_exporter_has_series(node: ScrapedNode, exporter: str) -> None:
    """Energy is not simulated."""
    names = {family.name for family in COMPAT[exporter]} - {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"}
    wait_until(lambda: all(node.prometheus.query(name) for name in names))


@pytest.mark.parametrize(
    ("query", "least", "most"),
    [  # as HAMi-WebUI, HAMi's and NVIDIA's dashboards for Grafana, and TKE's monitoring ask
        (
            'avg(vGPU_device_memory_usage_in_bytes{{deviceuuid="{card}",podname="train-0"}})',
            *(GIB, 2 * GIB),
        ),
        ('sum(vGPU_device_memory_limit_in_bytes{{podname="train-0"}})', 4 * GIB, 4 * GIB),
        ('avg(GPUDeviceMemoryLimit{{nodeid="node-1",deviceuuid="{card}"}})', 100 * GIB, 141 * GIB),
        ('sum(vGPUCoreAllocated{{nodename="node-1",podname="train-0"}})', 30, 30),
        ('max(DCGM_FI_DEV_GPU_TEMP{{UUID="{card}"}})', 20, 100),
        ('sum(DCGM_FI_DEV_POWER_USAGE{{Hostname="node-1"}})', 100, 1400),
        (
            "container_gpu_memory_total / on (pod_name) group_left() container_request_gpu_memory",
            *(0.25, 0.5),
        ),
        ('container_request_gpu_utilization{{container_name="main",node="node-1"}}', 0.3, 0.3),
    ],
)
def test_a_query_of_another_dashboard_has_its_value(
    node: ScrapedNode, query: str, least: float, most: float
) -> None:
    text = query.format(card=node.card)
    wait_until(lambda: bool(values(node.prometheus, text)))
    assert all(least <= value <= most for value in values(node.prometheus, text))


def test_the_reports_name_the_container_and_its_figures(node: ScrapedNode) -> None:
    def report(panel: str) -> list[float]:
        [query] = [each for each in queries("reports.json") if each.panel == panel]
        team = {**EVERYTHING, "namespace": "team"}
        return [float(row["value"][1]) for row in answer(node, query, team, HOUR)]

    wait_until(lambda: [round(each) for each in report("Compliance with quotas C")] == [1])
    assert report("Unused memory A") == [4 * GIB]
    [used] = report("Unused memory B")
    assert 0.2 < used < 0.5
    assert report("Compliance with quotas E") == [pytest.approx(0.3)]
