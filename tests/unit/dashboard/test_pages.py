# SPDX-License-Identifier: Apache-2.0
"""What the pages get of the history: graphs for a spreadsheet, reports, events."""

from __future__ import annotations

import csv
import io
import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from gpushare.client import UnknownTenant
from gpushare.dashboard.reports import MEDIA, REPORTS
from gpushare.dashboard.series import BadGraph
from gpushare.dashboard.server import DashboardPages
from gpushare.http_server import HttpRequest
from gpushare.prices import Prices
from tests.unit.history.world import HOUR, T0, UUIDS, Actor, event, record

TRAIN, SERVE = "team/a/train", "=serve"
PERIOD = {"since": T0, "until": T0 + HOUR}


def history(name: str, _since: float) -> list[dict[str, Any]]:
    """Return an event of each container, and one of a card."""
    if name:
        raise UnknownTenant("no container", [])
    over, bare = ("over-quota-warned", "unallocated-container-detected")
    return [
        *(event(1, 60, over, {"tenant": tenant, "used_bytes": 1}) for tenant in (TRAIN, SERVE)),
        event(2, 60, bare, {"card": UUIDS[1], "container": "bare\ud800", "used_bytes": 1}),
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> DashboardPages:
    """The pages of an hour with two containers, on a card each."""
    folder = tmp_path_factory.mktemp("history")
    actors = [
        Actor(TRAIN, lambda _: (2.0, 30.0, 0)),
        Actor(SERVE, lambda _: (1.0, 10.0, 0), cards=(1,)),
    ]
    record(folder, actors, HOUR)
    live: Any = SimpleNamespace(client=SimpleNamespace(history=history))
    return DashboardPages(live, folder, Prices(), lambda: T0 + HOUR)


def asked(**query: Any) -> HttpRequest:
    return HttpRequest("GET", f"/?{urlencode(query, doseq=True)}")


def test_a_graph_for_a_spreadsheet_has_a_column_for_each_line_and_no_formula(
    pages: DashboardPages,
) -> None:
    subjects = [f"container:{SERVE}", "container:none"]
    figures = ["used_bytes", "throttled_seconds"]
    response = pages.series_csv(asked(subject=subjects, figure=figures, **PERIOD))
    heading, first, *_ = csv.reader(io.StringIO(response.body.decode()))
    assert heading[:5] == [
        "time",
        "'=serve used_bytes (bytes)",
        "'=serve used_bytes (bytes) minimum",
        "'=serve used_bytes (bytes) maximum",
        "'=serve throttled_seconds (seconds)",
    ]
    assert first[1:] == [*[str(float(1 << 30))] * 3, "0.0", "", "", "", ""]


@pytest.mark.parametrize(
    ("chosen", "names", "overs"),
    [
        ({}, [TRAIN, SERVE], [TRAIN, SERVE, "bare\ud800"]),
        ({"card": UUIDS[1]}, [SERVE], [SERVE, "bare\ud800"]),
        ({"namespace": "team"}, [TRAIN], [TRAIN]),
        ({"container": "erv"}, [SERVE], [SERVE]),
        ({"mode": "exclusive"}, [], []),
    ],
)
def test_a_report_has_what_its_filters_let_pass(
    pages: DashboardPages, chosen: dict[str, str], names: list[str], overs: list[str]
) -> None:
    def column(name: str, place: int) -> list[str]:
        response = pages.report(asked(name=name, **PERIOD, **chosen))
        return [row[place] for row in json.loads(response.body)["rows"]]

    assert column("usage", 0) == names
    assert column("compliance", 1) == overs


def test_a_report_can_be_downloaded_in_each_format(pages: DashboardPages) -> None:
    found = json.loads(pages.reports(asked()).body)
    assert [one["name"] for one in found["reports"]] == [*REPORTS]
    assert found["formats"] == [*MEDIA]
    for form, media in MEDIA.items():
        response = pages.report(asked(name="usage", format=form, **PERIOD))
        assert response.content_type == f"{media}; charset=utf-8"
        assert f"gpushare-usage.{form}" in response.headers["Content-Disposition"]
        assert b"serve" in response.body
        assert b"bare" in pages.report(asked(name="compliance", format=form, **PERIOD)).body
    with pytest.raises(BadGraph, match="no such report"):
        pages.report(asked(name="none", **PERIOD))


def test_a_container_that_gpushared_does_not_know_has_no_events(pages: DashboardPages) -> None:
    assert json.loads(pages.events(asked(name="none", **PERIOD)).body) == []
    assert len(json.loads(pages.events(asked(**PERIOD)).body)) == 3
