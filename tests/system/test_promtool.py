# SPDX-License-Identifier: Apache-2.0
"""promtool takes figures, rules and queries of dashboards, and rules fire where they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cli.metrics import DASHBOARDS, RULES, read
from gpushare.exporter.exposition import expose
from tests.unit.exporter.made import snapshot, tenant
from tests.unit.exporter.test_dashboards import panels
from tests.unit.exporter.test_rules import CASES, GIB, PART, RECORDS

pytestmark = pytest.mark.needs("promtool")
#: What Grafana fills into a query.
VARIABLES = {
    **dict.fromkeys(("node", "mode", "card", "namespace", "pod", "container"), ".*"),
    "__range": "24h",
    "__rate_interval": "4m",
    "1": "$1",  # not Grafana's: label_replace's
}


def promtool(*words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("promtool")
    assert program
    return subprocess.run([program, *words], input=text, capture_output=True, check=False)


def check(folder: Path, tests: Sequence[dict[str, Any]], rules: str | None = None) -> str:
    """Have promtool test the rules; return what does not hold."""
    (folder / RULES).write_text(rules or read(RULES))
    for test in tests:
        test["input_series"] = [
            {"series": key, "values": values} for key, values in test["input_series"].items()
        ]
        test["interval"] = "1m"
    file = folder / "tests.yaml"
    known = {"rule_files": [RULES], "evaluation_interval": "1m"}
    file.write_text(yaml.safe_dump({**known, "tests": [*tests]}))
    done = promtool("test", "rules", str(file))
    return (done.stdout + done.stderr).decode() if done.returncode else ""


def query(expression: str, at: str, value: float | None, labels: str = "{}") -> dict[str, Any]:
    """Return the test that a query has that one value, or none."""
    samples = [] if value is None else [{"labels": labels, "value": value}]
    return {"expr": expression, "eval_time": at, "exp_samples": samples}


def alert(name: str, at: str, *, fires: bool) -> dict[str, Any]:
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    return query(firing, at, 1 if fires else None)


def blocks() -> Iterator[dict[str, Any]]:
    """Yield tests: of each rule the series that fire and those that do not."""
    for name, case in CASES.items():
        for series, fires in ((case.fires, True), (case.quiet, False)):
            yield {
                "name": f"{name} {'fires' if fires else 'is quiet'}",
                "input_series": series,
                "promql_expr_test": [alert(name, case.at, fires=fires)],
            }


def filled(expression: str) -> str:
    return re.sub(r"\$(\w+)", lambda name: VARIABLES[name[1]], expression)


def test_the_figures_are_without_flaw() -> None:
    text, _ = expose(snapshot(tenant(), tenant("b", id="b")), "")
    done = promtool("check", "metrics", text=text)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_it_takes_each_query_of_a_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:query_{number}", "expr": filled(target["expr"])}
        for name in DASHBOARDS
        for number, panel in enumerate(panels(name))
        for target in panel["targets"]
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", "--lint=none", str(file))
    assert done.returncode == 0, done.stderr


def test_two_cards_that_had_one_index_are_two_lines(tmp_path: Path) -> None:
    """The second one replaced the first, which is still in the range."""
    series, queries = {}, []
    for target in (
        target for name in DASHBOARDS for panel in panels(name) for target in panel["targets"]
    ):
        if "{{card}}" not in target["legendFormat"] and "gpu_uuid) (" not in target["expr"]:
            continue
        [metric] = re.findall(r"gpushare_\w+", target["expr"])
        for uuid, values in (("GPU-5b1f2f4e-0000", "1+1x60"), ("GPU-77aa2f4e-0000", "_x58 3+1x60")):
            series[f'{metric}{{node="n",gpu_uuid="{uuid}",gpu_index="0",model="H200"}}'] = values
        label = "card" if "{{card}}" in target["legendFormat"] else "gpu_uuid"
        lines = f"count(count by (node, gpu_index, {label}) ({filled(target['expr'])}))"
        queries.append(query(lines, "1h", 2))
    assert len(queries) > 20
    assert not check(tmp_path, [{"input_series": series, "promql_expr_test": queries}])


def test_each_rule_fires_where_it_should_and_nowhere_else(tmp_path: Path) -> None:
    assert not check(tmp_path, [*blocks()])
    wrong = read(RULES).replace("gpushare_up == 0", "gpushare_up > 9")
    assert check(tmp_path, [next(blocks())], wrong)


def test_each_recorded_series_has_its_value(tmp_path: Path) -> None:
    tests = [
        {
            "input_series": series,
            "promql_expr_test": [query(record, "30m", value, f"{record}{{{labels}}}")],
        }
        for record, (series, labels, value) in RECORDS.items()
    ]
    assert not check(tmp_path, tests)


def test_a_report_counts_hours(tmp_path: Path) -> None:
    """Two hours of a quarter of a card with a quota of 4 GiB are 0.5 GPU hours, 8 GiB hours."""
    series = {
        f"gpushare_container_gpu_time_seconds_total{{{PART}}}": "0+15x120 stale",
        f"gpushare_container_memory_quota_bytes{{{PART}}}": f"{4 * GIB}x120 stale",
        f'gpushare_container_memory_used_bytes{{{PART},kind="buffers"}}': f"{GIB // 2}x120 stale",
    }
    [by_namespace] = [each for each in panels("reports.json") if each["title"] == "By namespace"]
    [unused] = [each for each in panels("reports.json") if each["title"] == "Unused memory"]
    expressions = [
        *zip([target["expr"] for target in by_namespace["targets"]], (0.5, 8, 1), strict=True),
        (unused["targets"][2]["expr"], 2),
    ]
    queries = [
        query(f"count(abs(({filled(expression)}) / {hours} - 1) < 0.01)", "6h", 1)
        for expression, hours in expressions
    ]
    assert not check(tmp_path, [{"input_series": series, "promql_expr_test": queries}])
