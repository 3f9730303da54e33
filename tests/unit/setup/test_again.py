# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --again`: what a package runs after an upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.setup import plan

from .test_install import snapshot
from .test_setup import setup


def test_a_machine_that_is_not_set_up_stays_as_it_is(machine: Path) -> None:
    before = snapshot(machine)
    result = setup(machine, "--again")
    assert (result.exit_code, result.output) == (0, "gpushare is not set up on this machine\n")
    assert snapshot(machine) == before


def test_the_engines_and_units_of_earlier_setups_get_the_new_version(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert setup(machine, "--runtime", "podman", "--kubernetes", "plugin").exit_code == 0
    node = machine / "etc/systemd/system/gpushare-node.service"
    node.unlink()
    docker = (machine / "etc/docker/daemon.json").read_text()
    monkeypatch.setattr("gpushare.__version__", "9.9.9")
    monkeypatch.setattr(plan, "unit_files", lambda: {"gpushared.service": "[Service]\n"})
    result = setup(machine, "--again")
    assert result.exit_code == 0, result.output
    assert "podman: runtime gpushare registered" in result.output
    current = machine / "usr/local/lib/gpushare/current"
    assert current.readlink().name.startswith("9.9.9-")
    unit = machine / "etc/systemd/system/gpushared.service"
    assert unit.read_text() == "[Service]\n"
    assert node.is_file()
    assert (machine / "etc/docker/daemon.json").read_text() == docker
