# SPDX-License-Identifier: Apache-2.0
"""Cards and containers from the rows that a node's exporter serves. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpushare.kubernetes.cluster import ClusterCard, ClusterContainer
from gpushare.protocol.rows import RUN_STATES


class BadFigures(ValueError):
    """The answer is not that of a gpushare-exporter of this version."""


class NodeFigures(NamedTuple):
    """The figures of a node's exporter."""

    cards: list[ClusterCard]
    containers: list[ClusterContainer]
    versions: Mapping[str, str]  # of gpushared and the driver; empty: gpushared does not answer
    problem: str  # why the figures are incomplete or stale; empty: they are not


def node_figures(node: str, text: str) -> NodeFigures:
    """Return what `text`, an exporter's answer, says about the node `node`; BadFigures."""
    try:
        return _figures(node, json.loads(text))
    except KeyError as error:
        raise BadFigures(f"of another version of gpushare: no {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BadFigures(f"not a gpushare-exporter's: {error}") from error


def _figures(node: str, rows: Mapping[str, Any]) -> NodeFigures:
    daemon = rows["daemon"]
    if daemon is None:
        return NodeFigures([], [], {}, "gpushared does not answer")
    is_stale = not daemon["driver_up"]
    return NodeFigures(
        [_card(node, row) for row in rows["cards"]],
        [_container(node, row, part) for row in rows["tenants"] for part in row["cards"]],
        {"version": daemon["version"], "driver": daemon["driver_version"]},
        "the driver is not loaded, or its figures are stale" if is_stale else "",
    )


def _card(node: str, row: Mapping[str, Any]) -> ClusterCard:
    of_row = [key for key in ClusterCard.__annotations__ if key not in {"node", "source"}]
    return {"node": node, "source": "exporter", **{key: row[key] for key in of_row}}  # type: ignore[typeddict-item]


def _container(node: str, row: Mapping[str, Any], part: Mapping[str, Any]) -> ClusterContainer:
    compute, pod, used = part["compute"], row["pod"] or {}, part["utilization"]
    causes = [one["by"] for one in row["interventions"]]
    stopped = next((state for by, state in RUN_STATES.items() if by in causes), "frozen")
    return {
        "namespace": pod.get("namespace", ""),
        "pod": pod.get("name", ""),
        "container": pod.get("container", row["name"]),
        "id": row["id"],
        "node": node,
        "source": "exporter",
        "index": part["index"],
        "uuid": part["uuid"],
        "used_bytes": part["used_bytes"],
        "quota_bytes": part["quota_bytes"],
        "limit_bytes": part["limit_bytes"],
        "cores": part["cores"],
        "cores_used": None if used is None else round(used, 3),
        "cores_source": part["utilization_source"],
        "policy": part["policy"],
        "throttled": compute["throttled"]["10s"] if row["state"] == "bound" else 0.0,
        "isolation": row["isolation"],
        "class": row["class"],
        "priority": row["priority"],
        "forced_launches": compute["forced_launches"],
        "is_hung": compute["is_hung"],
        "state": stopped if causes else "running",
    }
