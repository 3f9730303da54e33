# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --root`: what it makes, twice, and that --undo leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpushare import install
from gpushare.cli import gpushare
from gpushare.engines import config_files
from gpushare.setup import plan, undo
from gpushare.setup.optional_unit import EXPORTER, NODE, OptionalUnit
from tests.unit.setup.machine import write
from tests.unit.setup.test_install import RUNC, SOCKET, make_source, snapshot
from tests.unit.setup.test_setup import setup


def test_undo_keeps_the_users_edits(machine: Path) -> None:
    setup(machine)
    mine = machine / "etc/gpushare/gpushare.yaml"
    mine.write_text(mine.read_text() + "reserve: 1GiB\n")
    stays = "keep  /etc/gpushare/gpushare.yaml: it was edited since setup"
    for more in (["--dry-run"], []):
        said = setup(machine, "--undo", *more).output
        assert stays in said
        assert "remove /etc/gpushare/gpushare.yaml" not in said
    assert "reserve" in mine.read_text()
    assert not (machine / "opt").exists()


def test_an_interrupted_setup_can_be_undone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(machine)
    with monkeypatch.context() as broken:
        broken.setattr(config_files.FileChange, "apply", None)
        assert setup(machine).exit_code == 1
    assert snapshot(machine) != before
    setup(machine, "--undo")
    assert snapshot(machine) == before


def test_an_engine_is_started_after_the_socket_and_never_after_the_daemon(machine: Path) -> None:
    """A container that asks for no GPU waits for no driver."""
    write(machine / "usr/lib/systemd/system/docker.service", "[Service]\nExecStart=dockerd\n")
    before = snapshot(machine)
    setup(machine, "--runtime", "docker", "--runtime", "containerd")
    folder = machine / "etc/systemd/system"
    lines = (folder / "docker.service.d/gpushare.conf").read_text().splitlines()
    assert lines[-3:] == ["[Unit]", "Wants=gpushared.socket", "After=gpushared.socket"]
    assert not (folder / "containerd.service.d").exists()  # it has no unit here
    assert not [text for text in plan.unit_files().values() if "\nBefore=" in text]
    setup(machine, "--undo")
    assert snapshot(machine) == before


def test_many_that_install_at_once_all_have_it(tmp_path: Path) -> None:
    source = make_source(tmp_path)

    def made(_: int) -> install.Installation:
        one = install.install(tmp_path / "to", runtime=RUNC, socket=SOCKET, source=source)
        return install.activate(one)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(made, range(16)))
    assert len(found) == 1
    names = sorted(path.name for path in (tmp_path / "to").iterdir())
    assert len(names) == 2
    assert names[1] == install.CURRENT


@pytest.mark.parametrize(("unit", "exposure"), [(EXPORTER, 20), (NODE, 30)])
def test_systemd_takes_the_unit_and_finds_it_hardened(
    tmp_path: Path, unit: OptionalUnit, exposure: int
) -> None:
    text = unit.text()
    program = tmp_path / unit.program
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / unit.name
    file.write_text(text.replace(str(Path(sys.prefix) / "bin" / unit.program), str(program)))
    done = analyze("verify", str(file))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # Of 10, which is a service that may do everything; below 2 systemd calls it OK.
    done = analyze("security", "--offline=true", f"--threshold={exposure}", str(file))
    assert done.returncode == 0, done.stdout


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


SPEC = "/var/lib/gpushare/driver.json"
MARKED = f"cdi_spec: {SPEC}  # added by gpushare setup"
SECTION = f"driver: {{cdi_spec: {SPEC}}}  # added by gpushare setup\n"

COMPLETED = {
    "reserve: 1GiB # mine\n": f"reserve: 1GiB # mine\n{SECTION}",
    "": SECTION,
    "reserve: 1GiB": f"reserve: 1GiB\n{SECTION}",
    "driver:\n    # mine\n    libraries: /opt/x\naudit: {}\n": (
        f"driver:\n    # mine\n    {MARKED}\n    libraries: /opt/x\naudit: {{}}\n"
    ),
    "driver: # later\nreserve: 1GiB\n": f"driver: # later\n  {MARKED}\nreserve: 1GiB\n",
    "driver: {libraries: /opt/x}\n": f"driver: {{cdi_spec: {SPEC}, libraries: /opt/x}}\n",
}


@pytest.mark.parametrize("theirs", COMPLETED)
def test_a_missing_key_is_added_and_taken_back(machine: Path, theirs: str) -> None:
    file = machine / "etc/gpushare/gpushare.yaml"
    write(file, theirs)
    before = snapshot(machine)
    result = setup(machine)
    assert result.exit_code == 0, result.output
    assert "complete /etc/gpushare/gpushare.yaml with driver.cdi_spec" in result.stdout
    assert file.read_text() == COMPLETED[theirs]
    assert "(edited by you)" in setup(machine).stdout
    assert setup(machine, "--undo").exit_code == 0
    assert snapshot(machine) == before


def test_edits_after_it_stay(machine: Path) -> None:
    file = machine / "etc/gpushare/gpushare.yaml"
    write(file, "# mine\nreserve: 1GiB\n")
    setup(machine, "--kubernetes", "plugin")
    loaded = yaml.safe_load(file.read_text())
    assert loaded == {
        "reserve": "1GiB",
        "driver": {"cdi_spec": SPEC},
        "kubernetes": {"mode": "plugin"},
    }
    file.write_text(file.read_text() + "max_tenants: 4\n")
    assert "do    " not in setup(machine).stdout
    setup(machine, "--undo")
    assert file.read_text() == "# mine\nreserve: 1GiB\nmax_tenants: 4\n"


@pytest.mark.parametrize("theirs", ["{reserve: 1GiB}\n", "- a\n", "a: [\n", "reserve: 1GiB\n...\n"])
def test_a_file_without_a_place_for_it_is_refused(machine: Path, theirs: str) -> None:
    write(machine / "etc/gpushare/gpushare.yaml", theirs)
    before = snapshot(machine)
    result = setup(machine)
    assert result.exit_code == 1
    assert "/etc/gpushare/gpushare.yaml" in result.stderr
    assert snapshot(machine) == before


def run(tmp_path: Path, script: str, *words: str) -> Result:
    """Run the command with `script` in place of gpushare-undo."""
    program = tmp_path / "gpushare-undo"
    program.write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo, "UNDO", program)
        return CliRunner().invoke(gpushare, ["setup", "--undo", "--dry-run", *words])


@pytest.mark.parametrize(("status", "exit_code"), [(3, 3), (1, 1)])
def test_its_error_is_the_command_s(tmp_path: Path, status: int, exit_code: int) -> None:
    script = f"echo 'gpushare: these still use it: train.' >&2\nexit {status}\n"
    result = run(tmp_path, script)
    assert result.exit_code == exit_code
    assert result.stderr == "gpushare: these still use it: train.\n"


def test_its_steps_are_shown_with_their_diffs(tmp_path: Path) -> None:
    script = "echo 'would restore a'; echo '-old'; echo 'next  restart it'; echo 'keep  b'"
    shown = run(tmp_path, script)
    assert shown.stdout.splitlines()[:4] == [
        "would restore a",
        "-old",
        "next  restart it",
        "keep  b",
    ]
    assert json.loads(run(tmp_path, script, "--json").stdout) == [
        {"step": "restore a", "needed": True, "yours": False, "diff": "-old\n"},
        {"step": "restart it", "needed": False, "yours": True, "diff": ""},
        {"step": "b", "needed": False, "yours": False, "diff": ""},
    ]
