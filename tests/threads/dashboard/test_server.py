# SPDX-License-Identifier: Apache-2.0
"""What the dashboard answers: gpushared's rows, the figures of the history, and no more."""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client
from gpushare.dashboard.server import STATIC
from gpushare.history.reader import HistoryReader
from gpushare.history.reports import REPORTS, ReportSource, make_report
from tests.threads.dashboard.conftest import GIB, KEY
from tests.threads.dashboard.served import ServedDashboard, options_of, served
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows
from tests.unit.cli.test_history import event
from tests.unit.exporter.made import UUID

#: What a browser loads for a page: all files but the licence.
MOST_BYTES = 500_000


def query(what: str, /, **parameters: Any) -> str:
    return f"/api/{what}?{urllib.parse.urlencode(parameters, doseq=True)}"


def test_the_rows_are_those_of_gpushared(site: ServedDashboard, daemon: AnsweringDaemon) -> None:
    client, now = Client(daemon.path), site.json("/api/now")
    assert [without_sharing(row) for row in now["cards"]] == client.cards()
    assert [without_sharing(row) for row in now["tenants"]] == client.tenants()
    assert now["node"]["version"] == client.status()["version"]
    assert now["error"] == ""
    assert [row["sharing"] for row in now["tenants"]] == ["share", "share"]


def without_sharing(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "sharing"}


def test_without_gpushared_the_pages_say_so_and_show_the_history(
    tmp_path: Path, history: Path, end: float
) -> None:
    with served(options_of(tmp_path / "none.sock", history)) as site:
        now = site.json("/api/now")
        assert "gpushared is not running" in now["error"]
        assert now["cards"] == now["tenants"] == []
        found = site.json(query("subjects", since=end - 3600, until=end))
        assert [row["name"] for row in found["containers"]] == ["train"]


def test_a_graph_has_the_figures_of_the_history_with_its_gap(
    site: ServedDashboard, end: float
) -> None:
    asked = {"subject": f"container:{KEY}", "since": end - 3600, "until": end}
    found = site.json(query("series", figure=["used_bytes", "throttled_seconds"], **asked))
    memory, throttled = found["lines"]
    assert (memory["unit"], memory["name"]) == ("bytes", "train")
    known = [value for value in memory["values"] if value is not None]
    assert known[-1] == 359 * GIB // 100
    [gap] = [
        at for at, value in zip(found["times"], memory["values"], strict=True) if value is None
    ]
    assert gap == end - 1200  # the last sample before it
    assert sum(value or 0 for value in throttled["values"]) == pytest.approx(359)


def test_every_graph_is_csv_with_the_same_values(site: ServedDashboard, end: float) -> None:
    asked = {"subject": f"container:{KEY}", "since": end - 3600, "until": end}
    graph = site.json(query("series", figure="used_bytes", **asked))
    status, headers, body = site.ask(query("series.csv", figure="used_bytes", **asked))
    assert (status, headers.get_content_type()) == (200, "text/csv")
    heading, *rows = csv.reader(io.StringIO(body.decode()))
    assert heading[:2] == ["time", "train used_bytes (bytes)"]
    values = [float(row[1]) if row[1] else None for row in rows]
    assert values == graph["lines"][0]["values"]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"since": "x", "until": 1}, "since must be a time"),
        ({"since": 2, "until": 1}, "since must be before until"),
        ({"since": "nan", "until": 1}, "since must be a time"),
        ({"since": 0, "until": 10, "subject": "card:x", "figure": "cores"}, "no figure cores"),
        ({"since": 0, "until": 10, "subject": "/etc/passwd", "figure": "power"}, "no figure"),
        ({"since": 0, "until": 10}, "1 to 64 lines"),
        ({"since": 0, "until": 10, "subject": ["card:x"] * 65, "figure": "power"}, "64 lines"),
    ],
)
def test_a_wrong_request_is_refused(site: ServedDashboard, parameters: Any, text: str) -> None:
    status, _, body = site.ask(query("series", **parameters))
    assert status == 400
    assert text in json.loads(body)["error"]


def test_memory_by_kind_and_events_come_from_gpushared(
    site: ServedDashboard, daemon: AnsweringDaemon, end: float
) -> None:
    daemon.answers["why"] = [{"ok": True, "why": {"name": "train", "cards": []}}]
    assert site.json(query("why", name=KEY))["name"] == "train"
    before = event("tenant-bound", name="train", time=end - 5)
    daemon.answers["history"] = rows(before, {**before, "number": 2, "time": end + 5})
    [found] = site.json(query("events", name=KEY, since=end - 60, until=end))
    assert found["time"] == end - 5
    assert found["text"].startswith("The container's process is registered")
    assert daemon.requests[-1]["name"] == KEY


def test_a_report_is_that_of_the_command_line(site: ServedDashboard, end: float) -> None:
    names = [one["name"] for one in site.json("/api/reports")["reports"]]
    assert names == list(REPORTS)
    asked = {"name": "usage", "since": end - 3600, "until": end}
    found = site.json(query("report", **asked))
    [row] = found["rows"]
    assert row[0] == "train"
    assert len(row) == len(found["headings"])
    status, headers, body = site.ask(query("report", format="json", **asked))
    assert (status, headers["Content-Disposition"]) == (
        200,
        'attachment; filename="gpushare-usage.json"',
    )
    [made] = json.loads(body)["rows"]
    with HistoryReader(site.options.history) as reader:
        source = ReportSource(reader, end - 3600, end, lambda _: [])
        [wanted] = make_report("usage", source).document["rows"]
    assert made == wanted


def test_events_of_other_containers_are_in_no_filtered_report(
    site: ServedDashboard, daemon: AnsweringDaemon, end: float
) -> None:
    first = event("over-quota-detected", key=KEY, name="train", time=end - 600, card=UUID)
    first["fields"] = {"used_bytes": 5 * GIB, "limit_bytes": 4 * GIB, "card": 0}
    other = {**first, "number": 2, "key": "f" * 16, "name": "serve", "time": end - 500}
    daemon.answers["history"] = rows(first, other)
    asked = {"since": end - 3600, "until": end}
    everything = site.json(f"{query('report', **asked)}&name=compliance")
    assert len(everything["rows"]) == 2
    [row] = site.json(f"{query('report', container='train', **asked)}&name=compliance")["rows"]
    assert "train" in row


@pytest.mark.parametrize("words", ["name=none", "name=usage&format=exe", "name=usage&by=colour"])
def test_an_unknown_report_is_refused(site: ServedDashboard, words: str) -> None:
    assert site.ask(f"/api/report?since=1&until=2&{words}")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(site: ServedDashboard, method: str) -> None:
    for path in ("/api/now", "/", "/main.js"):
        assert site.ask(path, method=method)[0] == 405


@pytest.mark.parametrize(
    "path", ["/../server.py", "/..%2fserver.py", "/%2e%2e/access.py", "/vendor/", "/api/none"]
)
def test_only_the_files_of_the_pages_are_served(site: ServedDashboard, path: str) -> None:
    assert site.ask(path)[0] == 404


def test_a_page_is_small_and_loads_nothing_from_elsewhere(site: ServedDashboard) -> None:
    total = 0
    for file in STATIC.rglob("*"):
        if file.is_dir() or file.name == "LICENSE":
            continue
        accept = {"Accept-Encoding": "gzip"}
        status, _, body = site.ask(f"/{file.relative_to(STATIC)}", accept)
        assert status == 200
        total += len(body)
        if file.parent == STATIC:
            text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
            assert not re.search(r"https?:|url\(|@import|import\(|innerHTML", text), file
    assert 20_000 < total <= MOST_BYTES
