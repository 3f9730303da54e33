# SPDX-License-Identifier: Apache-2.0
"""What is found of a host: the driver and its devices, NUMA nodes, cgroups, the init system."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from gpushare.host import cgroups, driver
from gpushare.host.driver import DriverMissing
from gpushare.host.driver.device_nodes import prepare_driver
from gpushare.host.rooted_tree import RootedTree
from tests.unit.host import elf
from tests.unit.host.layouts import (
    DEBIAN,
    LAYOUTS,
    UUIDS,
    Host,
    container_optimized,
    debian,
    run_installer,
)

HERE = Path(__file__).parent


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_spec_of_a_packagers_driver_is_as_recorded(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path)
    recorded = json.loads((HERE / "golden" / f"{layout}.json").read_text())
    assert driver.find(tmp_path).cdi() == recorded


@pytest.mark.parametrize("layout", LAYOUTS)
def test_engines_may_read_the_spec(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout](tmp_path)
    schema = json.loads((HERE / "cdi.schema.json").read_text())
    jsonschema.validate(driver.find(tmp_path).cdi(), schema)


def test_the_kernels_version_is_read_of_both_kinds_of_module(tmp_path: Path) -> None:
    host = container_optimized(tmp_path)
    assert driver.kernel_version(tmp_path) == host.version
    host.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n",
    )
    assert driver.kernel_version(tmp_path) == "570.86.10"


def test_a_jetson_is_refused_with_the_reason(tmp_path: Path) -> None:
    Host(tmp_path, "").write(f"{DEBIAN}/tegra/libcuda.so.1.1", elf.library("libcuda.so.1"))
    with pytest.raises(DriverMissing, match="Jetson"):
        driver.find(tmp_path)


def test_no_driver_says_how_to_try_without(tmp_path: Path) -> None:
    with pytest.raises(DriverMissing, match="--simulate"):
        driver.find(tmp_path)


def test_a_loaded_module_without_libraries_names_it_and_the_folders(tmp_path: Path) -> None:
    run_installer(tmp_path)
    shutil.rmtree(tmp_path / "usr")
    with pytest.raises(DriverMissing) as error:
        driver.find(tmp_path)
    for text in ("nvidia 580.95.05 is loaded", DEBIAN, "/run/opengl-driver/lib", "driver.cdi_spec"):
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("content", "why"), [("", "is empty"), ("other", "was not installed by NVIDIA's driver")]
)
def test_a_placeholder_is_no_driver(tmp_path: Path, content: str, why: str) -> None:
    Host(tmp_path, "").write("usr/lib64/libcuda.so.1", content)
    with pytest.raises(DriverMissing, match=rf"libcuda\.so\.1 {why}"):
        driver.find(tmp_path)


def test_only_cards_with_a_node_are_this_containers(tmp_path: Path) -> None:
    debian(tmp_path).write("dev/nvidia0")
    assert [card.uuid for card in driver.find(tmp_path).cards] == [UUIDS[1]]


def test_a_spec_of_an_earlier_driver_is_stale(tmp_path: Path) -> None:
    spec = driver.find(debian(tmp_path).root).cdi()
    # Nothing of the folder's machine is on this one.
    assert f"{DEBIAN}/nvidia/current/libcuda.so.550.163.01" in driver.missing_files(spec)
    spec["containerEdits"]["mounts"] = [{"hostPath": "/etc/passwd"}]
    assert driver.missing_files(spec) == []


class MachineWithModprobe(Host):
    """Its files, and a modprobe that loads what it is given."""

    def __init__(self, root: Path, *, loaded: bool) -> None:
        super().__init__(root, "580.95.05")
        self.ran: list[list[str]] = []
        self.why = ""
        (root / "dev").mkdir()
        self.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        self.write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
        self.write("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n")
        if loaded:
            self.kernel()

    def run(self, command: Sequence[str]) -> str:
        self.ran.append(list(command))
        if not self.why:
            self.kernel()
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
def test_a_node_of_another_major_is_made_anew(tmp_path: Path) -> None:
    """The major of nvidia-uvm is given out when the module is loaded."""
    machine = MachineWithModprobe(tmp_path, loaded=True)
    made(machine)
    loaded = (tmp_path / "proc/devices").read_text()
    machine.write("proc/devices", loaded.replace("511", "510"))
    assert made(machine) == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert machine.node("nvidia-uvm") == (510, 0, 0o666)


@pytest.mark.usefixtures("plain")
def test_the_nodes_of_mig_instances_are_made(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=True)
    machine.kernel(caps=236)
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


@pytest.mark.usefixtures("plain")
def test_a_module_that_is_not_installed_is_reported_once_and_no_node_made(tmp_path: Path) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=False)
    machine.why = "FATAL: Module nvidia not found"
    done = prepare_driver(RootedTree(tmp_path), machine.run)
    assert done.problems == ["modprobe nvidia: FATAL: Module nvidia not found"]
    assert list((tmp_path / "dev").iterdir()) == []


def test_nvidia_s_own_program_prints_no_reason_and_modprobe_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MachineWithModprobe(tmp_path, loaded=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    reasons = {"modprobe": "FATAL: Module nvidia not found"}
    done = prepare_driver(
        RootedTree(machine.root), lambda command: reasons.get(command[0], "exit status 1")
    )
    (problem,) = done.problems
    assert problem.endswith("exit status 1; modprobe nvidia: FATAL: Module nvidia not found")


def test_a_group_that_is_gone_has_nothing_to_freeze(tmp_path: Path) -> None:
    for freezer in (cgroups.CgroupV1Freezer, cgroups.CgroupV2Freezer):
        gone = freezer(tmp_path / "gone")
        assert (gone.freeze(), gone.is_set(), gone.is_empty(0.0)) == (True, False, True)


MOUNT_V2 = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


MOUNT_V1 = (
    "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 1 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "33 1 0:29 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd\n"
)


NESTED = "34 1 0:30 /docker/4f5e /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"


def test_cpuset_and_a_container_s_own_part_are_left_out() -> None:
    assert cgroups.hierarchies(MOUNT_V2 + MOUNT_V1 + NESTED) == [
        Path("/sys/fs/cgroup"),
        Path("/sys/fs/cgroup/memory"),
        Path("/sys/fs/cgroup/systemd"),
    ]
