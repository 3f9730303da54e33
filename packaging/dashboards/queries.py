# SPDX-License-Identifier: Apache-2.0
"""The variables of the dashboards, and PromQL that selects by them.

Queries use the metrics of gpushare-exporter and the recording rules of
configs/prometheus/gpushare.rules.yaml; tests/system/test_dashboards.py runs each one.
"""

from __future__ import annotations

from typing import Final

from .dashboard import Variable

#: The matchers of a node, and of one card of it.
NODE: Final = 'node=~"$node"'
CARD: Final = f'{NODE},gpu_uuid=~"$card"'
#: Of a namespace, as the rules record it; of a container; and of one card of it.
SPACE: Final = f'{NODE},mode=~"$mode",namespace=~"$namespace"'
TENANT: Final = f'{SPACE},pod=~"$pod"'
PART: Final = f'{TENANT},gpu_uuid=~"$card"'

_QUOTA: Final = "gpushare_container_memory_quota_bytes"
VARIABLES: Final = (
    Variable("node", "Node", "label_values(gpushare_up, node)"),
    Variable("mode", "Mode", f"label_values({_QUOTA}{{{NODE}}}, mode)"),
    Variable(
        "card",
        "Card",
        f'query_result(label_join(gpushare_card_tenants{{{NODE}}}, "card", "/", "node", '
        '"gpu_index"))',
        '/[{,]card="(?<text>[^"]+)|gpu_uuid="(?<value>[^"]+)/g',
    ),
    Variable(
        "namespace", "Namespace", f'label_values({_QUOTA}{{{NODE},mode=~"$mode"}}, namespace)'
    ),
    Variable("pod", "Pod", f"label_values({_QUOTA}{{{SPACE}}}, pod)"),
)
CONTAINER: Final = Variable(
    "container", "Container", f"label_values({_QUOTA}{{{TENANT}}}, container)"
)

#: The labels of a card and of a container, with the titles of their columns.
CARD_LABELS: Final = {"node": "Node", "gpu_index": "Card", "model": "Model"}
CONTAINER_LABELS: Final = {
    "node": "Node",
    "namespace": "Namespace",
    "pod": "Pod",
    "container": "Container",
    "container_id": "ID",
}
#: The same as names of series.
CARD_NAME: Final = "{{node}}/{{gpu_index}}"
CONTAINER_NAME: Final = "{{namespace}} {{pod}} {{container}}"


def of_card(name: str) -> str:
    """Return the series of gpushare_card_`name`."""
    return f"gpushare_card_{name}{{{CARD}}}"


def of_node(name: str, labels: str = "") -> str:
    """Return the series of gpushare_`name` of a node, with more matchers of `labels`."""
    return f"gpushare_{name}{{{NODE}{labels and ','}{labels}}}"


def of_part(name: str, labels: str = PART) -> str:
    """Return the series of gpushare_container_`name`, for each card of a container."""
    return f"gpushare_container_{name}{{{labels}}}"


def per_second(counter: str, labels: str = PART) -> str:
    """Return the rate of gpushare_container_`counter`, for a graph."""
    return f"rate({of_part(counter, labels)}[$__rate_interval])"


def over_range(function: str, series: str) -> str:
    """Return what `function` finds in `series` over the time range of the dashboard."""
    return f"{function}({series}[$__range])"


def by_card(expression: str) -> str:
    """Return one series for each card."""
    return f"sum by ({', '.join(CARD_LABELS)}) ({expression})"


def by_container(expression: str, operator: str = "sum") -> str:
    """Return one series for each container, over its cards."""
    return f"{operator} by ({', '.join(CONTAINER_LABELS)}) ({expression})"
