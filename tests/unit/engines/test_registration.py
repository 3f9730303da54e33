# SPDX-License-Identifier: Apache-2.0
"""`gpushare runtime configure` and `unconfigure`: files, what is kept of them, what is undone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpushare.cli import gpushare
from gpushare.engines import config_files, find
from gpushare.engines.config_files import backup_path
from gpushare.host.init_system import advice

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


def test_a_missing_launcher_is_reported(tmp_path: Path) -> None:
    result = configure("docker", tmp_path / "daemon.json")
    assert f"warn: {LAUNCHER} does not exist. docker cannot start containers" in result.output
    found = configure("docker", tmp_path / "daemon.json", "--launcher", "/bin/true")
    assert "warn" not in found.output


def test_an_engine_gets_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configure("docker", tmp_path / "daemon.json", "--launcher", "here/gpushare-runtime")
    launcher = registered("docker", tmp_path / "daemon.json")
    assert launcher == tmp_path / "here/gpushare-runtime"


@pytest.mark.parametrize("engine", ["docker", "containerd"])
def test_a_file_that_was_not_there_is_gone_again(tmp_path: Path, engine: str) -> None:
    file = tmp_path / "made" / "config"
    assert configure(engine, file).exit_code == 0
    assert file.exists()
    assert unconfigure(engine, file).exit_code == 0
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(("engine", "content"), [("docker", DOCKER), ("containerd", CONTAINERD)])
def test_a_dry_run_shows_the_diff_and_writes_nothing(
    tmp_path: Path, engine: str, content: bytes
) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    result = configure(engine, file, "--dry-run")
    assert f"+++ {file}" in result.output
    assert LAUNCHER in result.output
    how = advice(find(engine).locate(Path("/"), file).apply)
    assert f"\nnext: the same without --dry-run, then {how}" in result.output
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_an_edit_since_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_bytes(DOCKER)
    configure("docker", file, "--set-as-default")
    file.write_bytes(file.read_bytes().replace(b"1e3", b"2e3"))
    unconfigure("docker", file)
    assert file.read_bytes() == DOCKER.replace(b"1e3", b"2e3")


def test_an_upgrade_keeps_the_first_backup(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_bytes(DOCKER)
    configure("docker", file)
    configure("docker", file, "--launcher", "/opt/newer")
    assert registered("docker", file) == Path("/opt/newer")
    assert backup_path(file).read_bytes() == DOCKER
    unconfigure("docker", file)
    assert file.read_bytes() == DOCKER


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_bytes(DOCKER)
    link = tmp_path / "daemon.json"
    link.symlink_to(real)
    configure("docker", link)
    assert link.is_symlink()
    assert LAUNCHER in real.read_text()


def test_a_broken_file_is_named_with_its_line_and_left(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{\n  "debug": true,\n}')
    result = configure("docker", file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"gpushare: {file}:3: ")
    assert "Nothing was changed" in result.stderr
    assert file.read_text() == '{\n  "debug": true,\n}'


def test_json_has_the_diff_and_the_next_command(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    said = json.loads(configure("docker", file, "--dry-run", "--json").output)
    assert said["changed"] is False
    assert said["next"] == advice("systemctl reload docker")
    assert LAUNCHER in said["diff"]


def test_removing_a_missing_entry_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    file.write_bytes(DOCKER)
    assert unconfigure("docker", file).output == f"{file}: nothing to change\n"
    assert file.read_bytes() == DOCKER
