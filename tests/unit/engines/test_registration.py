# SPDX-License-Identifier: Apache-2.0
"""`gpushare runtime configure`: what it adds, and that unconfigure leaves every byte as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpushare.cli import gpushare
from gpushare.engines import config_files, find
from gpushare.engines.config_files import backup_path
from gpushare.host.init_system import advice

from . import machine

LAUNCHER = "/opt/gpushare-test/bin/gpushare-runtime"
DOCKER = b'{\n\t"x": 1e3,\n\t"default-runtime": "runc"\n}'
CONTAINERD = b"version = 3 # mine\r\n[debug]\r\n  level = 'info'\r\n"


def registered(engine: str, file: Path) -> Path | None:
    return config_files.registered_launcher(find(engine).locate(Path("/"), file).files[0])


def configure(engine: str, file: Path, *more: str) -> Result:
    words = ["runtime", "configure", "--runtime", engine, "--config", str(file)]
    return CliRunner().invoke(gpushare, [*words, "--launcher", LAUNCHER, *more])


def unconfigure(engine: str, file: Path, *more: str) -> Result:
    words = ["runtime", "unconfigure", "--runtime", engine, "--config", str(file), *more]
    return CliRunner().invoke(gpushare, words)


@pytest.mark.parametrize(("engine", "content"), [("docker", DOCKER), ("containerd", CONTAINERD)])
def test_undone_byte_for_byte(tmp_path: Path, engine: str, content: bytes) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    file.chmod(0o600)
    result = configure(engine, file, "--set-as-default")
    assert result.exit_code == 0, result.output
    assert str(registered(engine, file)) == LAUNCHER
    assert file.stat().st_mode & 0o777 == 0o600
    assert backup_path(file).read_bytes() == content
    assert advice(find(engine).locate(Path("/"), file).apply) in result.output
    again = configure(engine, file, "--set-as-default").output
    assert again.splitlines()[0] == f"{file}: nothing to change"
    assert unconfigure(engine, file).exit_code == 0
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_an_upgrade_keeps_the_first_backup(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_bytes(DOCKER)
    configure("docker", file)
    configure("docker", file, "--launcher", "/opt/newer")
    assert registered("docker", file) == Path("/opt/newer")
    assert backup_path(file).read_bytes() == DOCKER
    unconfigure("docker", file)
    assert file.read_bytes() == DOCKER


WITHOUT_CRI = "containerd-docker-ce"


def files_after(name: str) -> dict[str, str]:
    return machine.files(machine.MACHINES / name / "after")


@pytest.mark.parametrize("name", machine.NAMES)
def test_each_distribution_gets_the_configuration_it_needs(name: str, tmp_path: Path) -> None:
    before = machine.files(machine.make(name, tmp_path))
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    assert machine.files(tmp_path) == before | files_after(name)


@pytest.mark.parametrize("name", machine.NAMES)
def test_a_second_time_changes_nothing(name: str, tmp_path: Path) -> None:
    machine.make(name, tmp_path)
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    after = machine.files(tmp_path)
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    machine.configure(name, tmp_path, default=False)
    assert machine.files(tmp_path) == after


@pytest.mark.parametrize("name", machine.NAMES)
@pytest.mark.parametrize("default", [False, True])
def test_undone_nothing_is_left(name: str, default: bool, tmp_path: Path) -> None:
    before = machine.files(machine.make(name, tmp_path))
    machine.configure(name, tmp_path, default=default and machine.may_be_default(name))
    assert machine.files(tmp_path) != before
    machine.unconfigure(name, tmp_path)
    assert machine.files(tmp_path) == before
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".before-gpushare")]


def test_a_disabled_cri_is_reported(tmp_path: Path) -> None:
    place = find("containerd").locate(machine.make(WITHOUT_CRI, tmp_path), None)
    (change,) = config_files.configure(place, machine.LAUNCHER, default=False)
    assert "the CRI plugin is disabled (disabled_plugins)" in change.remarks[0]
