# SPDX-License-Identifier: Apache-2.0
"""A dashboard: its variables, time ranges and layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from .panel import DATASOURCE, Json, Panel

#: The time ranges by Grafana's notation. Grafana 10 and 11 offer all of them by default, 12 only
#: these.
RANGES: Final = {
    "now-30m": "Last 30 minutes",
    "now-1h": "Last 1 hour",
    "now-6h": "Last 6 hours",
    "now-12h": "Last 12 hours",
    "now-24h": "Last 24 hours",
    "now-2d": "Last 2 days",
    "now-7d": "Last 7 days",
}
_COLUMNS: Final = 24
_REFRESH_ON_TIME_RANGE: Final = 2


class Variable(NamedTuple):
    """A variable whose values a query of Grafana's Prometheus data source returns.

    `regex` names what the list shows (text) and what a query gets (value).
    """

    name: str
    title: str
    query: str
    regex: str = ""

    def json(self) -> Json:
        """Return it as Grafana reads it. All includes the empty value: containers of no pod."""
        everything = {"text": ["All"], "value": ["$__all"], "selected": True}
        return {
            "name": self.name,
            "label": self.title,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": self.query, "refId": self.name},
            "definition": self.query,
            "regex": self.regex,
            "refresh": _REFRESH_ON_TIME_RANGE,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": everything,
            "options": [],
            "hide": 0,
            "skipUrlSync": False,
        }


class Row(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


def text(uid: str, title: str, variables: Sequence[Variable], rows: Sequence[Row]) -> str:
    """Return the JSON of a dashboard, for import or provisioning."""
    datasource = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        "hide": 0,
        "skipUrlSync": False,
    }
    found: Json = {
        "id": None,
        "uid": uid,
        "title": title,
        "tags": ["gpushare"],
        "schemaVersion": 38,  # of Grafana 10.0; later ones migrate it when they load it
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "timepicker": {
            "refresh_intervals": ["10s", "30s", "1m", "5m", "15m"],
            "quick_ranges": [
                {"display": display, "from": start, "to": "now"}
                for start, display in RANGES.items()
            ],
        },
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "gpushare",
                "tags": ["gpushare"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [datasource, *(variable.json() for variable in variables)]},
        "panels": _placed(rows),
    }
    return json.dumps(found, indent=2) + "\n"


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Return the panels, each row from left to right; what does not fit is in the next line."""
    found: list[Json] = []
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        heading = {"id": len(found) + 1, "type": "row", "title": row.title, "gridPos": place}
        found.append({**heading, "collapsed": False, "panels": []})
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            found.append(panel.json(len(found) + 1, place))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return found
