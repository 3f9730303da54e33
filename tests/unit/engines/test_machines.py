# SPDX-License-Identifier: Apache-2.0
"""Each distribution's files before, after, and after the undo."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.engines import config_files, find

from . import machine

WITHOUT_CRI = "containerd-docker-ce"


def registered(name: str) -> dict[str, str]:
    return machine.files(machine.MACHINES / name / "after")


@pytest.mark.parametrize("name", machine.NAMES)
def test_each_distribution_gets_the_configuration_it_needs(name: str, tmp_path: Path) -> None:
    before = machine.files(machine.make(name, tmp_path))
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    assert machine.files(tmp_path) == before | registered(name)


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
