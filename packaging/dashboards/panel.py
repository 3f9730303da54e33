# SPDX-License-Identifier: Apache-2.0
"""A panel of a dashboard: time series, a single value, or a table.

The fields are those of Grafana's dashboard JSON model, with the plugins `timeseries`, `stat` and
`table`. The data source is the one that the variable `datasource` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Json = dict[str, Any]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
#: Units by Grafana's names.
BYTES: Final = "bytes"
CELSIUS: Final = "celsius"
COUNT: Final = "short"
HERTZ: Final = "hertz"
HOURS: Final = "h"
RATIO: Final = "percentunit"
SECONDS: Final = "s"
WATTS: Final = "watt"


class Query(NamedTuple):
    """A PromQL expression, and the name of its series with {{label}} in it."""

    expression: str
    legend: str = ""


class TableColumn(NamedTuple):
    """A column of a table: one value for each row, by an instant query."""

    title: str
    expression: str
    unit: str = COUNT


@dataclass(frozen=True)
class Panel:
    """A panel, without its place; the width is of 24 columns."""

    title: str
    plugin: str
    text: str
    width: int
    height: int
    queries: Sequence[Query]
    defaults: Json
    options: Json
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()
    target: Json = field(default_factory=dict)

    def json(self, number: int, place: Json) -> Json:
        """Return it as Grafana reads it."""
        return {
            "id": number,
            "type": self.plugin,
            "title": self.title,
            "description": self.text,
            "datasource": DATASOURCE,
            "gridPos": place,
            "targets": [
                {
                    "refId": _letter(index),
                    "datasource": DATASOURCE,
                    "editorMode": "code",
                    "expr": query.expression,
                    "legendFormat": query.legend or "__auto",
                    **self.target,
                }
                for index, query in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": self.defaults, "overrides": list(self.overrides)},
            "options": self.options,
            "transformations": list(self.transformations),
        }


def graph(  # noqa: PLR0913 - each has a default
    title: str,
    unit: str,
    *queries: Query,
    text: str = "",
    stacked: bool = False,
    most: float | None = None,
    width: int = 12,
) -> Panel:
    """Return time series, on an axis that ends at `most`. A gap in the data stays a gap."""
    defaults: Json = {
        "unit": unit,
        "min": 0,
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if stacked else 0,
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        },
    }
    if most is not None:
        defaults["max"] = most
    options: Json = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        *(title, "timeseries", text, width, 8, queries, defaults, options),
        target={"range": True, "instant": False, "format": "time_series"},
    )


def stat(
    title: str,
    expression: str,
    unit: str = COUNT,
    *,
    text: str = "",
    bad_above: float | None = None,
) -> Panel:
    """Return a single value; red above `bad_above`."""
    steps: list[Json] = [{"color": "text" if bad_above is None else "green", "value": None}]
    if bad_above is not None:
        steps.append({"color": "red", "value": bad_above + 1e-9})
    defaults: Json = {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}}
    options: Json = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    }
    return Panel(
        *(title, "stat", text, 4, 4, (Query(expression),), defaults, options),
        target={"range": False, "instant": True, "format": "time_series"},
    )


def table(  # noqa: PLR0913 - each has a default
    title: str,
    labels: Mapping[str, str],
    columns: Sequence[TableColumn],
    *,
    text: str = "",
    sort: str = "",
    width: int = 24,
) -> Panel:
    """Return a table with a row for each set of `labels`, which are given with their titles.

    Each column's expression yields one series for each row. `sort` is the title of the column by
    which the rows are sorted, highest first.
    """
    single = len(columns) == 1
    values = {
        "Value" if single else f"Value #{_letter(index)}": column.title
        for index, column in enumerate(columns)
    }
    order = {name: index for index, name in enumerate([*labels, *values])}
    transformations: list[Json] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "indexByName": order,
                "renameByName": {**labels, **values},
            },
        },
    ]
    overrides = [
        {
            "matcher": {"id": "byName", "options": column.title},
            "properties": [{"id": "unit", "value": column.unit}],
        }
        for column in columns
    ]
    options: Json = {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
    }
    queries = [Query(column.expression) for column in columns]
    return Panel(
        *(title, "table", text, width, 8, queries, {"custom": {"align": "auto"}}, options),
        overrides=overrides,
        transformations=transformations,
        target={"range": False, "instant": True, "format": "table"},
    )


def _letter(index: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index]
