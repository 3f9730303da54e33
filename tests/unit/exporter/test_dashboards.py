# SPDX-License-Identifier: Apache-2.0
"""Grafana can import the dashboards, and what they query exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpushare.cli import gpushare
from gpushare.cli.metrics import DASHBOARDS, FILES, RULES, read
from gpushare.exporter.exposition import FAMILIES

#: Grafana's own variables, and what PromQL's label_replace takes from a label.
BUILT_IN = {"__range", "__rate_interval", "1"}


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read(name))
    return found


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_names_no_data_source_of_its_own(name: str) -> None:
    found = dashboard(name)
    assert (found["id"], found["schemaVersion"]) == (None, 38)
    sources = re.findall(r'"datasource": \{[^{}]*"uid": "([^"]*)"', read(name))
    assert set(sources) == {"${datasource}"}
    first, *rest = found["templating"]["list"]
    assert (first["type"], first["query"]) == ("datasource", "prometheus")
    names = {variable["name"] for variable in rest}
    assert names >= {"node", "mode", "card", "namespace", "pod"}
    queries = " ".join(target["expr"] for panel in panels(name) for target in panel["targets"])
    assert set(re.findall(r"\$(\w+)", queries)) - BUILT_IN == names


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_panel_rests_on_families_that_exist(name: str) -> None:
    known = {family.name for family in FAMILIES}
    for group in yaml.safe_load(read(RULES))["groups"]:
        known |= {rule["record"] for rule in group["rules"] if "record" in rule}
    for panel in panels(name):
        for target in panel["targets"]:
            used = re.findall(r"(?:\w+:)?gpushare_\w+(?::\w+)?", target["expr"])
            assert used or "ALERTS" in target["expr"], panel["title"]
            assert set(used) <= known


@pytest.mark.parametrize("name", DASHBOARDS)
def test_two_cards_that_had_one_index_are_told_apart(name: str) -> None:
    """A card was exchanged: for a while, series of both are in the range."""
    for target in (target for panel in panels(name) for target in panel["targets"]):
        query, legend = target["expr"], target["legendFormat"]
        if "{{node}}/{{gpu_index}}" in legend:
            assert query.endswith(', "card", "$1", "gpu_uuid", "(.{12}).*")')
            assert "{{node}}/{{gpu_index}} {{card}}" in legend
        for labels in re.findall(r"by \(([^)]*\bgpu_index\b[^)]*)\)", query):
            assert "gpu_uuid" in labels or (target["instant"] and "_over_time" not in query)


def exported(*words: str) -> str:
    done = CliRunner().invoke(gpushare, ["rules", "export", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", FILES)
def test_one_file_is_printed(name: str) -> None:
    assert exported(name) == read(name)
    loads = yaml.safe_load if name == RULES else json.loads
    assert json.loads(exported(name, "--json")) == loads(read(name))


def test_all_files_are_written_into_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "monitoring"
    said = exported("--output", str(folder))
    assert said.splitlines() == [str(folder / name) for name in FILES]
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        name: read(name) for name in FILES
    }
    one = tmp_path / "one"
    assert json.loads(exported("card.json", "--output", str(one), "--json")) == {
        "files": [str(one / "card.json")]
    }
