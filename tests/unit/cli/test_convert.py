# SPDX-License-Identifier: Apache-2.0
"""`gpushare convert`: what it writes where, what it says, and its exit status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from gpushare.cli import gpushare

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli

POD = """\
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: i
    resources:
      limits:
        nvidia.com/gpu: 1
        nvidia.com/gpumem: 3000
        nvidia.com/gpucores: 30
"""
OURS = """\
kind: Pod
metadata: {name: p, annotations: {gpushare.io/memory: 3000MiB, gpushare.io/cores: "30"}}
spec:
  runtimeClassName: gpushare
  containers:
  - name: c
    image: i
"""


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return path


def test_it_writes_to_stdout_and_leaves_the_file(cli: Cli, pod: Path) -> None:
    result = cli("convert", str(pod), "--to", "gpushare")
    assert result.exit_code == 0, result.output
    assert result.stdout == OURS
    assert pod.read_text() == POD


def test_stdin_is_a_file_called_dash() -> None:
    result = CliRunner().invoke(gpushare, ["convert", "-", "--to", "gpushare"], input=POD)
    assert result.exit_code == 0, result.output
    assert result.stdout == OURS


def test_in_place_keeps_mode_and_link(cli: Cli, pod: Path, tmp_path: Path) -> None:
    pod.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(pod)
    result = cli("convert", str(link), "--to", "gpushare", "--in-place")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert pod.read_text() == OURS
    assert pod.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    again = cli("convert", str(link), "--to", "gpushare", "--in-place")
    assert "nothing to change" in again.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "pod.yaml"]


def test_an_output_is_another_file(cli: Cli, pod: Path, tmp_path: Path) -> None:
    result = cli("convert", str(pod), "--to", "gpushare", "-o", str(tmp_path / "new.yaml"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "new.yaml").read_text() == OURS
    assert pod.read_text() == POD


@pytest.mark.parametrize("where", [["--in-place"], ["--json"], []], ids=str)
def test_strict_writes_nothing_where_something_has_none(
    cli: Cli, pod: Path, where: list[str]
) -> None:
    result = cli("convert", str(pod), "--to", "qgpu", "--strict", *where)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "nothing was written: " in result.stderr
    assert pod.read_text() == POD


def test_a_value_that_is_none_leaves_everything_as_it_was(cli: Cli, pod: Path) -> None:
    wrong = POD.replace("3000", "3Q") + "---\n" + POD
    pod.write_text(wrong)
    result = cli("convert", str(pod), "--to", "gpushare", "--in-place")
    assert result.exit_code == 1
    assert f"{pod}:10: limit nvidia.com/gpumem=3Q (HAMi): not" in result.stderr
    assert "nothing was written" in result.stderr
    assert pod.read_text() == wrong


def test_json_has_the_conversion_and_its_notes(cli: Cli, pod: Path) -> None:
    result = cli("convert", str(pod), "--to", "gpushare", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["changed"]
    assert data["containers"] == [{"name": "c", "of": "Pod p", "line": 5}]
    assert data["text"] == OURS
    assert [one["what"] for one in data["notes"]] == ["note"]


def test_in_place_and_another_output_are_a_contradiction(cli: Cli, pod: Path) -> None:
    assert cli("convert", str(pod), "--to", "hami", "-i", "-o", "x.yaml").exit_code == 2
    assert cli("convert", "-", "--to", "hami", "-i").exit_code == 2
