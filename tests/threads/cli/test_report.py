# SPDX-License-Identifier: Apache-2.0
"""gpushare report: what an operator asks for, with and without gpushared."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli import report as module
from gpushare.daemon.store.history import History
from gpushare.history import FOLDER
from gpushare.history.reports import REPORTS
from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows
from tests.unit.cli.test_transcripts import event
from tests.unit.history.world import GIB, HOUR, UUIDS, Actor, record

#: The constructed history begins two hours ago.
BEGIN = time.time() - 2 * HOUR


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the configuration of a node with a history; no gpushared runs."""
    monkeypatch.setattr("tests.unit.history.world.T0", BEGIN)
    actors = [
        Actor("team-a/train/main", lambda _at: (2, 25, 0)),
        Actor("team-b/serve/main", lambda _at: (1, 0, 0), cards=(1,)),
    ]
    record(tmp_path / FOLDER, actors, 1.9 * HOUR)
    events = History(tmp_path, "boot", days=7.0, most_bytes=1 << 20)
    frozen = {"tenant": "team-a/train/main", "card": UUIDS[0], "used_bytes": 5 * GIB}
    events.note(BEGIN + HOUR, "over-quota-frozen", "warning", frozen)
    events.close(20)
    file = tmp_path / "gpushare.yaml"
    prices = "prices: {currency: EUR, gpu_hour: 2, gib_hour: 0.5}"
    file.write_text(f"state_dir: {tmp_path}\n{prices}\n")
    return file


@pytest.fixture
def report(cli: Cli, node: Path) -> Cli:
    return lambda *words: cli("report", *words, "--config", str(node))


def test_every_report_is_printed_without_gpushared(report: Cli) -> None:
    for name in REPORTS:
        done = report(name, "--since", "3h")
        assert done.exit_code == 0, (name, done.output)
    heads, train, serve, total, *notes = report("usage", "--since", "3h").output.splitlines()
    assert heads.split()[:4] == ["CONTAINER", "CONTAINERS", "CARD", "TIME"]
    assert train.split()[:2] == ["team-a/train/main", "1"]
    assert "0.47" in train.split()
    assert serve.startswith("team-b/serve/main")
    assert total.split()[:2] == ["Total", "2"]
    assert notes[0].startswith("note: There are no figures for 1 h")


def test_prices_and_state_dir_come_from_gpushare_yaml(report: Cli) -> None:
    found = json.loads(report("chargeback", "--since", "3h", "--json").output)
    costs = {row["namespace"]: row["cost"] for row in found["rows"]}
    # Half of a card and 4 GiB are requested for 1.9 hours each.
    expected = 1.9 * 0.5 * 2 + 1.9 * 4 * 0.5
    assert costs == pytest.approx({"team-a": expected, "team-b": expected}, rel=1e-2)
    assert found["currency"] == "EUR"


def refuses(*_: Any) -> Any:
    raise PermissionError


def test_a_user_who_may_not_open_them_asks_gpushared(
    report: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_events", refuses)
    warned = event(
        "over-quota-warned", key="k", name="other", time=BEGIN + 60, fields={"used_bytes": GIB}
    )
    daemon.answers["history"] = rows(event("tenant-bound"), warned)
    [row] = json.loads(report("compliance", "--since", "3h", "--json").output)["rows"]
    assert (row["container"], row["action"]) == ("other", "warned")


def test_without_gpushared_such_a_user_is_told_what_to_do(
    report: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_events", refuses)
    done = report("oom")
    assert done.exit_code == 3
    assert done.stderr == (
        "gpushare: gpushared does not run, and only root can read its events. Use sudo.\n"
    )
    assert report("usage").exit_code == 0  # it needs no events


def test_a_report_is_csv(report: Cli) -> None:
    text = report("chargeback", "--since", "3h", "--by", "card", "--format", "csv").output
    assert [row["card"] for row in csv.DictReader(io.StringIO(text))] == ["0", "1"]


def test_no_history_is_an_error_that_names_the_folder(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "gpushare.yaml"
    file.write_text(f"state_dir: {tmp_path}\n")
    done = cli("report", "usage", "--config", str(file))
    assert done.exit_code == 1
    assert f"there is no metrics history in {tmp_path}" in done.stderr
    with file.open("a") as settings:
        settings.write("metrics_history: {retention_days: 0}\n")
    done = cli("report", "usage", "--config", str(file))
    assert done.exit_code == 1
    assert "metrics_history.retention_days is 0" in done.stderr
