# SPDX-License-Identifier: Apache-2.0
"""`gpushare cdi`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from gpushare import config
from gpushare.host import cdi_files, driver
from tests.unit.host.layouts import UUIDS, debian, run_installer

if TYPE_CHECKING:
    from .conftest import Cli


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


def test_yaml_says_the_same_as_json(cli: Cli, host: Path) -> None:
    """A program that reads only one of them reads the same."""
    words = ("cdi", "generate", "--driver-root", str(host), "--output", "-")
    text = cli(*words, "--format", "yaml").output
    assert yaml.safe_load(text) == json.loads(cli(*words).output)


def test_generate_leaves_the_spec_that_is_there_alone(cli: Cli, folder: Path, host: Path) -> None:
    nvidia = folder / "nvidia.yaml"
    folder.mkdir()
    nvidia.write_text(yaml.safe_dump(driver.find(host).cdi()))
    result = cli("cdi", "generate", "--driver-root", str(host))
    assert result.exit_code == 1
    assert f"{nvidia} already defines nvidia.com/gpu" in result.output
    assert list(folder.iterdir()) == [nvidia]


def test_a_driver_without_a_card_is_no_spec(cli: Cli, folder: Path, host: Path) -> None:
    shutil.rmtree(host / "proc/driver/nvidia/gpus")
    result = cli("cdi", "generate", "--driver-root", str(host))
    assert result.exit_code == 1
    assert "modprobe nvidia" in result.output
    assert not folder.exists()


def test_no_imex_channels_says_so(cli: Cli, host: Path) -> None:
    result = cli("cdi", "generate", "--driver-root", str(host), "--imex-channels")
    assert result.exit_code == 1
    assert "no IMEX channels" in result.output


def test_list_shows_devices_and_where_they_are_from(cli: Cli, folder: Path, tmp_path: Path) -> None:
    host = run_installer(tmp_path / "mig").root
    assert cli("cdi", "generate", "--driver-root", str(host)).exit_code == 0
    (folder / "broken.json").write_text("{")
    lines = cli("cdi", "list").output.splitlines()
    assert lines[0].split() == ["DEVICE", "NODES", "SOURCE", "STATE"]
    assert any(f"nvidia.com/gpu={UUIDS[1]}" in line and "nvidia0" in line for line in lines)
    assert any("nvidia.com/gpu=0:gi1:ci0" in line and "nvidia-cap21" in line for line in lines)
    # Nothing of the folder's machine is on this one.
    assert "of another driver" in lines[-1]
    assert any(line.startswith("- ") and "broken.json" in line for line in lines)


def test_list_shows_the_spec_of_the_configuration(
    cli: Cli, folder: Path, host: Path, tmp_path: Path
) -> None:
    named = tmp_path / "driver.json"
    named.write_text(json.dumps(driver.find(host).cdi()))
    config.DEFAULT_FILE.write_text(f"driver:\n  cdi_spec: {named}\n")
    assert not folder.exists()
    assert str(named) in cli("cdi", "list").output


def test_list_without_a_spec_says_how_to_make_one(cli: Cli, folder: Path) -> None:
    assert not folder.exists()
    result = cli("cdi", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "cdi generate" in result.stderr


def test_an_output_that_is_no_regular_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert cdi_files.write_spec(pipe, "text")
        assert os.read(reader, 16) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
