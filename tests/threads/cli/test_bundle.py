# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor --bundle FILE`: what a bug report needs, also without gpushared."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from gpushare.checks import Check
from gpushare.cli import bundle, doctor
from tests.unit.cli.conftest import CARD, STATUS, Cli, tenant
from tests.unit.cli.fake_daemon import AnsweringDaemon, rows
from tests.unit.cli.test_transcripts import event

ID = "4f5e6d7c8b9a" + "0" * 52


EVENT = event("tenant-reserved", key="0123456789abcdef", id=ID, name="team-a/llama-0/serve")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose checks, programs and journal are the test's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(doctor, "run_checks", lambda _client: iter([Check("ok", "on gpu-7", "")]))


@pytest.fixture
def serving(daemon: AnsweringDaemon, tmp_path: Path) -> AnsweringDaemon:
    """A gpushared with a container and a history, and a configuration."""
    file = tmp_path / "gpushare.yaml"
    file.write_text("namespaces:\n  team-b: {}\nkubernetes: {node: node-7}\n")
    daemon.answers |= {
        "status": [{**STATUS, "config": str(file), "pid": 1 << 30, "ok": True}],
        "cards": rows(CARD),
        "tenants": rows(tenant("llama", 1, 4), tenant("team-b/train-0/main", 1, 4)),
        "history": rows(EVENT),
    }
    return daemon


def program(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.removeprefix(f"{bundle.FOLDER}/")] = file.read().decode()
    return found


def made(cli: Cli, tmp_path: Path, *options: str) -> dict[str, str]:
    file = tmp_path / "report.tar.gz"
    result = cli("doctor", "--bundle", str(file), *options)
    assert result.exit_code == 0, result.output
    assert f"{file.stat().st_mode & 0o7777:o}" == "600"
    return content(file)


@pytest.mark.usefixtures("serving")
def test_it_has_what_gpushared_and_this_machine_say(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path, "docker", "echo Docker version 28; echo more")
    found = made(cli, tmp_path)
    assert [row["name"] for row in json.loads(found["ps.json"])] == ["llama", "team-b/train-0/main"]
    assert json.loads(found["ls.json"]) == [CARD]
    assert json.loads(found["history.json"]) == [EVENT]
    assert json.loads(found["doctor.json"]) == [{"level": "ok", "text": "on gpu-7", "fix": ""}]
    assert json.loads(found["status.json"])["driver_version"] == STATUS["driver_version"]
    assert "team-b" in found["gpushare.yaml"]
    versions = json.loads(found["versions.json"])
    assert versions["programs"] == {"docker": "Docker version 28"}
    assert versions["kernel"]


def test_without_gpushared_it_says_what_is_missing_and_why(cli: Cli, tmp_path: Path) -> None:
    found = made(cli, tmp_path, "--socket", str(tmp_path / "none.sock"))
    assert set(found) >= {"README.txt", "versions.json", "doctor.json"}
    assert not set(found) & {"status.json", "ls.json", "ps.json", "history.json"}
    assert "status.json, ls.json, ps.json, history.json: gpushared is not" in found["README.txt"]
    assert "gpushared.log, launcher.log, kernel.log: there is no journal" in found["README.txt"]
