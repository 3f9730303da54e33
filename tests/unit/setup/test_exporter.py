# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --metrics`: the exporter's unit, with as little as it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.setup import InstallRecord, exporter, plan

from .test_setup import machine, setup  # noqa: F401 - a fixture

UNIT = "etc/systemd/system/gpushare-exporter.service"
LINK = "etc/systemd/system/multi-user.target.wants/gpushare-exporter.service"


def test_the_exporters_unit_is_written_on_request_and_removed_by_undo(machine: Path) -> None:  # noqa: F811
    assert setup(machine).exit_code == 0
    assert not (machine / UNIT).exists()
    result = setup(machine, "--metrics")
    assert result.exit_code == 0, result.output
    program = Path(sys.prefix) / "bin/gpushare-exporter"
    assert f"\nExecStart={program}\n" in (machine / UNIT).read_text()
    assert (machine / LINK).readlink() == Path("/") / UNIT
    again = setup(machine, "--metrics")
    assert "do    " not in again.output
    assert setup(machine, "--undo").exit_code == 0
    assert not (machine / UNIT).exists()
    assert not (machine / LINK).is_symlink()


def test_without_the_library_nothing_is_begun(
    machine: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = setup(machine, "--metrics")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert f"{sys.executable} -m pip install prometheus_client" in said
    assert not (machine / "etc/gpushare").exists()


@pytest.mark.parametrize("prefix", ["/root/venv", "/home/me/venv"])
def test_an_exporter_that_its_user_cannot_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    with pytest.raises(plan.SetupError, match="/opt/gpushare"):
        list(exporter.plan_exporter(InstallRecord(Path("/"))))


def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    text = exporter.unit_text()
    program = tmp_path / "gpushare-exporter"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / exporter.NAME
    unit.write_text(text.replace(str(Path(sys.prefix) / "bin/gpushare-exporter"), str(program)))
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # Of 10, which is a service that may do everything; below 2 systemd calls it OK.
    done = analyze("security", "--offline=true", "--threshold=20", str(unit))
    assert done.returncode == 0, done.stdout


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


def test_it_may_speak_to_two_kinds_of_socket_and_do_nothing_else() -> None:
    said = dict(line.split("=", 1) for line in exporter.unit_text().splitlines() if "=" in line[1:])
    assert said["RestrictAddressFamilies"] == "AF_UNIX AF_INET AF_INET6"
    assert said["CapabilityBoundingSet"] == ""
    assert said["DynamicUser"] == "yes"
