# SPDX-License-Identifier: Apache-2.0
"""`gpushare config`: what holds and which line says so; every problem at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

from .conftest import STATUS
from .fake_daemon import AnsweringDaemon

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from .conftest import Cli

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


def test_show_has_each_value_in_effect_and_its_line(cli: Cli, file: Path) -> None:
    shown = rows(cli("config", "show", "--config", str(file), "--json"))
    assert shown["max_tenants"] == (4, f"{file}:1")
    assert shown["system_reserved"] == ("0B", "default")
    assert shown["read_group"] == (None, "-")
    assert shown["max_per_request.memory"] == ("4GiB", f"{file}:4")
    assert shown["defaults.memory"] == ("4GiB", f"{file}:2, limited to max_per_request.memory")
    assert shown["users.max_per_card.tenants"] == (2, f"{file}:7")
    assert shown["users.max_per_card.memory_percent"] == (50, "default")
    assert shown["namespaces.team.trust.env"] == ("request", f"{file}:9")
    assert "namespaces.team.defaults.memory" not in shown


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


def test_show_of_users(cli: Cli, file: Path) -> None:
    shown = rows(cli("config", "show", "--config", str(file), "--users", "--json"))
    assert shown["users.max_per_request.memory"] == ("4GiB", f"{file}:4")
    assert shown["users.max_per_card.cores"] == (50, "default")
    result = cli("config", "show", "--config", str(file), "--users", "--namespace", "team")
    assert result.exit_code == 2


def test_show_is_a_table(cli: Cli, file: Path) -> None:
    lines = cli("config", "show", "--config", str(file), "--users").output.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "SOURCE"]
    assert lines[1].split()[:2] == ["users.defaults.memory", "4GiB"]


LABELLED = {
    "defaults.policy": {
        "value": "burst-share",
        "source": "node label tke.cloud.tencent.com/qgpu-schedule-policy",
    },
    "cards.allowed_mode": {"value": "shared", "source": "node label ack.node.gpu.schedule"},
    "cards.cordoned": {"value": "GPU-1,GPU-2", "source": "node annotation hami.io/device-cordon"},
    "kubernetes.mode": {"value": "dra", "source": "node label gpushare.io/wanted-mode"},
}


def test_show_names_the_label_of_the_node_that_sets_a_key(
    cli: Cli, daemon: AnsweringDaemon, file: Path
) -> None:
    file.write_text(file.read_text() + 'cards: {"0": {allowed_mode: exclusive, max_tenants: 3}}\n')
    status = {"ok": True, **STATUS, "config": str(file), "node_settings": LABELLED}
    daemon.answers["status"] = [status]
    shown = rows(cli("config", "show", "--json"))
    policy = ("burst-share", "node label tke.cloud.tencent.com/qgpu-schedule-policy")
    mode = ("shared", "node label ack.node.gpu.schedule")
    assert shown["defaults.policy"] == policy
    assert shown["kubernetes.mode"] == ("dra", "node label gpushare.io/wanted-mode")
    assert (shown["cards.0.allowed_mode"], shown["cards.*.allowed_mode"]) == (mode, mode)
    assert shown["cards.0.max_tenants"][0] == 3
    assert shown["cards.GPU-2.cordoned"] == (True, "node annotation hami.io/device-cordon")
    team = rows(cli("config", "show", "--namespace", "team", "--json"))
    assert team["namespaces.team.defaults.policy"] == policy
    assert rows(cli("config", "show", "--config", str(file), "--json"))["defaults.policy"] == (
        "fixed-share",
        "default",
    )


def test_check_is_content_with_a_good_file(cli: Cli, file: Path) -> None:
    result = cli("config", "check", str(file))
    assert (result.exit_code, result.output) == (0, f"{file}: ok\n")
    result = cli("config", "check", str(file), "--json")
    assert json.loads(result.stdout) == {"file": str(file), "problems": []}


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


def test_schema_is_a_json_schema(cli: Cli) -> None:
    printed = json.loads(cli("config", "schema").output)
    Draft202012Validator.check_schema(printed)
    assert printed["properties"]["max_per_request"]
    assert json.loads(cli("config", "schema", "--json").output) == printed
