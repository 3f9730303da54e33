# SPDX-License-Identifier: Apache-2.0
"""`gpushare validate`: every problem of every file, and an exit status for CI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from gpushare.cli import gpushare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Cli

RIGHT = "services: {a: {image: i, runtime: gpushare, environment: {GPUSHARE_MEMORY: 4GiB}}}\n"
WRONG = "services: {a: {image: i, environment: {GPUSHARE_MEMORY: 4Q, GPUSHARE_CORES: 130}}}\n"
WARNED = "services: {a: {image: i, runtime: gpushare, environment: {GPUSHARE_CORES: 30}}}\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_a_file_with_nothing_wrong(cli: Cli, write: Callable[..., str]) -> None:
    file = write("compose.yaml", RIGHT)
    result = cli("validate", file)
    assert result.exit_code == 0
    assert result.stdout == f"{file}: ok (1 container, 1 requests a GPU)\n"


def test_every_problem_of_every_file_is_reported(cli: Cli, write: Callable[..., str]) -> None:
    first, second = write("a.yaml", WRONG), write("b.yaml", "a: [\n")
    result = cli("validate", "--quiet", first, second)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{first}:1:57: env GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB.",
        (
            f"{first}:1:77: env GPUSHARE_CORES=130: not a share of a card in percent. "
            "Write a whole number from 1 to 100."
        ),
        f"{first}: 2 problems (1 container, 1 requests a GPU)",
        f"{second}:2:1: not YAML: did not find expected node content",
        f"{second}: 1 problem (0 containers, 0 request a GPU)",
    ]


def test_warnings_alone_are_another_status_where_strict(
    cli: Cli, write: Callable[..., str]
) -> None:
    file = write("compose.yaml", WARNED)
    assert cli("validate", file).exit_code == 4
    assert cli("validate", "--lenient", file).exit_code == 0
    assert "1 warning (1 container" in cli("validate", "--lenient", file).stdout


def test_a_folder_is_its_manifests(cli: Cli, write: Callable[..., str], tmp_path: Path) -> None:
    write("sub/b.yml", RIGHT)
    write("a.json", "{}")
    write("notes.txt", "services: [")
    result = cli("validate", str(tmp_path))
    assert result.exit_code == 0
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == [
        str(tmp_path / "a.json"),
        str(tmp_path / "sub" / "b.yml"),
    ]


def test_a_folder_without_manifests_is_not_what_was_meant(cli: Cli, tmp_path: Path) -> None:
    result = cli("validate", str(tmp_path))
    assert result.exit_code == 1
    assert "contains no .yaml, .yml or .json file" in result.stderr


def test_standard_input_is_named_by_a_dash() -> None:
    result = CliRunner().invoke(gpushare, ["validate", "-"], input=WRONG)
    assert result.exit_code == 1
    assert result.stdout.startswith("-:1:57: env GPUSHARE_MEMORY=4Q")


def test_json_has_each_finding_with_its_parts(cli: Cli, write: Callable[..., str]) -> None:
    file = write("compose.yaml", WRONG)
    result = cli("validate", "--json", "--quiet", file)
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)["files"]
    assert (found["file"], found["containers"], found["asking"]) == (file, 1, 1)
    assert found["findings"][0] == {
        "line": 1,
        "column": 57,
        "key": "env GPUSHARE_MEMORY",
        "value": "4Q",
        "rule": "is not a size",
        "fix": "write e.g. 4GiB",
        "level": "error",
    }


def test_control_sequences_are_not_printed(cli: Cli, write: Callable[..., str]) -> None:
    file = write("compose.yaml", 'services: {a: {image: i, environment: {"GPUSHARE_\\e[2J": x}}}\n')
    assert "\x1b" not in cli("validate", file).stdout
