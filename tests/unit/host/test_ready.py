# SPDX-License-Identifier: Apache-2.0
"""A driver is made ready at boot: its modules, and its device nodes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpushare.host.driver.device_nodes import prepare_driver
from gpushare.host.rooted_tree import RootedTree

UUID = "GPU-11111111-0000-4000-8000-000000000000"
LOADED = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
NOTHING = "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n"


class MachineWithModprobe:
    """Its files, and a modprobe that loads what it is given."""

    def __init__(self, root: Path, *, loaded: bool) -> None:
        self.root = root
        self.ran: list[list[str]] = []
        self.why = ""
        (root / "dev").mkdir()
        self.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        self.write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
        self.write("proc/devices", NOTHING)
        if loaded:
            self.load()

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def load(self) -> None:
        self.write("proc/devices", LOADED)
        for minor in (1, 0):
            information = f"GPU UUID: \t {UUID}\nDevice Minor: \t {minor}\n"
            self.write(f"proc/driver/nvidia/gpus/0000:0{minor}:00.0/information", information)

    def run(self, command: Sequence[str]) -> str:
        self.ran.append(list(command))
        if not self.why:
            self.load()
        return self.why

    def node(self, name: str) -> tuple[int, int, int]:
        status = (self.root / "dev" / name).stat()
        assert stat.S_ISCHR(status.st_mode)
        return os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVIDIA's own program."""
    monkeypatch.setattr(shutil, "which", lambda _: None)


def made(machine: MachineWithModprobe) -> list[str]:
    done = prepare_driver(RootedTree(machine.root), machine.run)
    assert not done.problems
    return done.nodes


@pytest.mark.usefixtures("plain")
def test_modules_are_loaded_and_nodes_made_as_the_driver_would(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=False)
    names = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    assert made(machine) == [f"/dev/{name}" for name in names]
    assert machine.ran == [["modprobe", "nvidia"], ["modprobe", "nvidia-uvm"]]
    assert [machine.node(name) for name in names] == [
        (195, 0, 0o666),
        (195, 1, 0o666),
        (195, 255, 0o666),
        (511, 0, 0o666),
        (511, 1, 0o666),
    ]
    assert sorted(path.name for path in (tmp_path / "dev").iterdir()) == sorted(names)


@pytest.mark.usefixtures("plain")
def test_done_again_it_does_nothing(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=True)
    assert made(machine)
    assert made(machine) == []
    assert machine.ran == []


def test_nvidias_own_program_loads_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    machine = MachineWithModprobe(tmp_path, loaded=False)
    assert "/dev/nvidia1" in made(machine)
    assert machine.ran == [["/usr/bin/nvidia-modprobe", "-u", "-c", "0"]]


@pytest.mark.usefixtures("plain")
def test_nodes_follow_the_drivers_parameters(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=True)
    machine.write(
        "proc/driver/nvidia/params",
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n",
    )
    made(machine)
    assert machine.node("nvidiactl") == (195, 255, 0o660)
    assert (tmp_path / "dev/nvidiactl").stat().st_gid == 44


@pytest.mark.usefixtures("plain")
def test_a_driver_configured_without_nodes_gets_none(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=True)
    machine.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    assert made(machine) == []


@pytest.mark.usefixtures("plain")
def test_a_node_of_another_major_is_made_anew(tmp_path: Path) -> None:
    """The major of nvidia-uvm is given out when the module is loaded."""
    machine = MachineWithModprobe(tmp_path, loaded=True)
    made(machine)
    machine.write("proc/devices", LOADED.replace("511", "510"))
    assert made(machine) == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert machine.node("nvidia-uvm") == (510, 0, 0o666)


@pytest.mark.usefixtures("plain")
def test_the_nodes_of_mig_instances_are_made(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=True)
    machine.write("proc/devices", LOADED.replace("511", "236 nvidia-caps\n511"))
    folder = "proc/driver/nvidia/capabilities"
    access = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: {}\n"
    machine.write(f"{folder}/mig/config", access.format(1, 1).replace("292", "256"))
    machine.write(f"{folder}/gpu0/mig/gi1/access", access.format(12, 1))
    machine.write(f"{folder}/gpu0/mig/gi1/ci0/access", access.format(13, 0))
    assert [path for path in made(machine) if "caps" in path] == [
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap12",
    ]
    assert machine.node("nvidia-caps/nvidia-cap1") == (236, 1, 0o400)
    assert machine.node("nvidia-caps/nvidia-cap12") == (236, 12, 0o444)


def _other_vendor(machine: MachineWithModprobe) -> None:
    machine.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002\n")


def _audio(machine: MachineWithModprobe) -> None:
    machine.write("sys/bus/pci/devices/0000:01:00.0/class", "0x040300\n")


@pytest.mark.parametrize("change", [_other_vendor, _audio])
def test_a_machine_without_a_card_is_left_alone(
    tmp_path: Path, change: Callable[[MachineWithModprobe], None]
) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=False)
    change(machine)
    assert made(machine) == []
    assert machine.ran == []


@pytest.mark.usefixtures("plain")
def test_a_module_that_is_not_installed_is_reported_once_and_no_node_made(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=False)
    machine.why = "FATAL: Module nvidia not found"
    done = prepare_driver(RootedTree(tmp_path), machine.run)
    assert done.problems == ["modprobe nvidia: FATAL: Module nvidia not found"]
    assert list((tmp_path / "dev").iterdir()) == []
