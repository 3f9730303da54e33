# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --root`: what it makes, twice, and that --undo leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpushare.engines import config_files
from gpushare.setup import plan
from tests.unit.setup.machine import write
from tests.unit.setup.test_install import snapshot

if TYPE_CHECKING:
    pass
from tests.unit.setup.test_setup import setup

PROFILES = Path(__file__).resolve().parents[3] / "simulator/profiles"


@pytest.mark.parametrize("runtimes", [("docker",), ("docker", "containerd")])
def test_undo_leaves_nothing_behind(machine: Path, runtimes: tuple[str, ...]) -> None:
    before = snapshot(machine)
    setup(machine, *(word for name in runtimes for word in ("--runtime", name)))
    assert snapshot(machine) != before
    result = setup(machine, "--undo")
    assert result.exit_code == 0, result.output
    assert snapshot(machine) == before


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


def test_simulated_cards_are_a_driver_like_any(machine: Path, tmp_path: Path) -> None:
    profile = json.loads((PROFILES / "t4.json").read_text())
    chosen = tmp_path / "card.json"
    chosen.write_text(json.dumps(profile))
    before = snapshot(machine)
    result = setup(machine, "--simulate", str(chosen))
    assert result.exit_code == 0, result.output
    current = (machine / "usr/local/lib/gpushare/current").readlink()
    libcuda = f"/usr/local/lib/gpushare/{current}/lib/simulator/libcuda.so.1"
    spec = json.loads((machine / "var/lib/gpushare/simulator/cdi.json").read_text())
    mounts = {mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
    assert {libcuda, "/var/lib/gpushare/simulator/device"} <= mounts
    assert str((machine / "opt/gpushare/driver/libcuda.so.1").readlink()) == libcuda
    assert setup(machine, "--simulate", str(chosen)).output.count("do    ") == 0
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
