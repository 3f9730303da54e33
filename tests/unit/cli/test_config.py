# SPDX-License-Identifier: Apache-2.0
"""`gpushare config` and `gpushare cdi`: what holds, which line says so, every problem at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from gpushare import config, settings
from gpushare.host import cdi_files, driver
from gpushare.quota.node_settings import ALLOWED_MODE, CORDONED
from tests.unit.host.layouts import debian

from .conftest import STATUS, Cli
from .fake_daemon import AnsweringDaemon

TEXT = """\
max_tenants: 4
defaults: {memory: 8GiB}
max_per_request:
  memory: 4GiB
  memory_limit: 16GiB
users:
  max_per_card: {tenants: 2}
namespaces:
  team: {max_per_request: {memory: 2GiB}, trust: {env: request}}
  "dev-*": {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gpushare.yaml"
    path.write_text(TEXT)
    return path


def rows(result: Result) -> dict[str, tuple[object, str]]:
    assert result.exit_code == 0, result.output
    return {row["key"]: (row["value"], row["from"]) for row in json.loads(result.stdout)}


def test_show_of_a_namespace_includes_the_values_of_the_node(cli: Cli, file: Path) -> None:
    shown = rows(cli("config", "show", "--config", str(file), "--namespace", "team", "--json"))
    assert shown == {
        "namespaces.team.defaults.memory": ("2GiB", f"{file}:2, limited to max_per_request.memory"),
        "namespaces.team.max_per_request.memory": ("2GiB", f"{file}:9"),
        "namespaces.team.trust.env": ("request", f"{file}:9"),
    }
    shown = rows(cli("config", "show", "--config", str(file), "--namespace", "dev-x", "--json"))
    assert shown["namespaces.dev-*.max_per_request.memory_limit"] == ("16GiB", f"{file}:5")
    shown = rows(cli("config", "show", "--config", str(file), "--namespace", "other", "--json"))
    assert shown["max_per_request.memory"] == ("4GiB", f"{file}:4")


def test_show_has_what_labels_of_the_node_set(
    cli: Cli, file: Path, daemon: AnsweringDaemon
) -> None:
    file.write_text(TEXT + "cards: {GPU-1: {max_tenants: 2}}\n")
    labels = {"max_per_request.memory": "3GiB", ALLOWED_MODE: "exclusive", CORDONED: "0"}
    current = {key: {"value": text, "source": f"label {key}"} for key, text in labels.items()}
    status = {**STATUS, "config": str(file), "node_settings": current}
    daemon.answers["status"] = [{"ok": True, **status}]
    shown = rows(cli("config", "show", "--json"))
    changed = {key: value for key, (value, source) in shown.items() if source.startswith("label")}
    assert changed == {
        "max_per_request.memory": "3GiB",
        "cards.GPU-1.allowed_mode": "exclusive",
        "cards.*.allowed_mode": "exclusive",
        "cards.0.cordoned": True,
    }
    assert shown["cards.GPU-1.max_tenants"] == (2, f"{file}:11")


def test_show_of_users_and_the_schema(cli: Cli, file: Path) -> None:
    shown = rows(cli("config", "show", "--config", str(file), "--users", "--json"))
    assert shown["users.max_per_card.tenants"] == (2, f"{file}:7")
    assert shown["users.max_per_request.memory"] == ("4GiB", f"{file}:4")
    assert json.loads(cli("config", "schema").stdout) == settings.load_schema()


def test_check_reports_every_problem_at_once(cli: Cli, file: Path) -> None:
    file.write_text("max_tenant: 4\ndefaults:\n  memory: 4G\n  policy: fair\n")
    result = cli("config", "check", str(file))
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == f"gpushare: {file}:1: max_tenant: unknown key; did you mean max_tenants?"
    assert [line.partition(f"{file}:")[2][:1] for line in lines] == ["1", "3", "4"]
    result = cli("config", "check", str(file), "--json")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert [(one["line"], one["key"]) for one in problems] == [
        (1, "max_tenant"),
        (3, "defaults.memory"),
        (4, "defaults.policy"),
    ]
    assert problems[0]["text"] == "unknown key; did you mean max_tenants?"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of specs in place of /etc/cdi, and no configuration."""
    made = tmp_path / "cdi"
    monkeypatch.setattr(cdi_files, "FOLDERS", (made,))
    monkeypatch.setattr(cdi_files, "OWN", made / "gpushare.json")
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "gpushare.yaml")
    return made


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return debian(tmp_path / "host").root


def test_generate_writes_to_the_engines_folder(cli: Cli, folder: Path, host: Path) -> None:
    result = cli("cdi", "generate", "--driver-root", str(host))
    assert result.exit_code == 0, result.output
    assert f"wrote: {folder}/gpushare.json" in result.output
    assert "devices: 0, GPU-1111" in result.output
    assert json.loads((folder / "gpushare.json").read_text()) == driver.find(host).cdi()
    again = cli("cdi", "generate", "--driver-root", str(host))
    assert "unchanged" in again.output


def test_generate_leaves_the_spec_that_is_there_alone(cli: Cli, folder: Path, host: Path) -> None:
    nvidia = folder / "nvidia.yaml"
    folder.mkdir()
    nvidia.write_text(yaml.safe_dump(driver.find(host).cdi()))
    result = cli("cdi", "generate", "--driver-root", str(host))
    assert result.exit_code == 1
    assert f"{nvidia} already defines nvidia.com/gpu" in result.output
    assert list(folder.iterdir()) == [nvidia]
