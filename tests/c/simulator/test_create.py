# SPDX-License-Identifier: Apache-2.0
"""Profiles, the device file and the CDI spec."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file

from .conftest import ROOT, SimulatorMachine

PROFILES = sorted(path.stem for path in (ROOT / "simulator/profiles").glob("*.json"))


@pytest.mark.parametrize("mig", [(), ("1g.18gb",)])
def test_slow_motion_makes_the_cards_own_durations_longer(
    tmp_path: Path, mig: tuple[str, ...]
) -> None:
    def profiles(time_scale: float) -> list[device_file.Profile]:
        made = simulator.create(tmp_path, time_scale=time_scale, mig=mig)
        content = made.device.read_bytes()[ctypes.sizeof(device_file.Header) :]
        size = ctypes.sizeof(device_file.Profile)
        return [
            device_file.Profile.from_buffer_copy(content, at * size) for at in range(1 + len(mig))
        ]

    for real, slow in zip(profiles(1), profiles(8), strict=True):
        for name in ("slice_ns", "switch_preempt_ns", "switch_drained_ns"):
            assert getattr(slow, name) == 8 * getattr(real, name) > 0


def test_python_and_c_lay_the_file_out_alike(tmp_path: Path) -> None:
    structures = {
        "sim_header": device_file.Header,
        "sim_mig_profile": device_file.MigProfile,
        "sim_profile": device_file.Profile,
        "sim_faults": device_file.Faults,
    }
    lines = ['#include "device.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void){"]
    wanted = {}
    for name, mirror in structures.items():
        wanted[name] = ctypes.sizeof(mirror)
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in mirror._fields_:
            wanted[f"{name}.{field}"] = getattr(mirror, field).offset
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
    lines += ['printf("bytes %llu\\n", (unsigned long long)SIM_FILE_BYTES);']
    lines += ['printf("magic %llu\\n", (unsigned long long)SIM_MAGIC);']
    lines += ['printf("faults %zu\\n", offsetof(struct sim_device, faults));']
    lines += ['printf("layout %d cards %d\\n", SIM_LAYOUT, SIM_CARDS);', "}"]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    include = ROOT / "simulator"
    subprocess.run(
        ["gcc", "-I", str(include), str(source), "-o", str(tmp_path / "layout")], check=True
    )
    printed = subprocess.run(
        [str(tmp_path / "layout")], capture_output=True, text=True, check=True
    ).stdout.split()
    found = dict(zip(printed[::2], map(int, printed[1::2]), strict=True))
    assert found == {
        **wanted,
        "bytes": device_file.FILE_BYTES,
        "magic": device_file.MAGIC,
        "faults": device_file.FAULTS_OFFSET,
        "layout": device_file.LAYOUT,
        "cards": device_file.CARDS_MOST,
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_says_where_its_figures_are_from(profile: str) -> None:
    loaded = simulator.load_profile(profile)
    for key in ("memory_bytes", "reserved_bytes", "context_bytes", "slice_ns", "multiprocessors"):
        assert len(loaded["sources"][key]) > 10
    assert loaded["sources"].keys() <= loaded.keys()


def _changed(tmp_path: Path, **changes: Any) -> Path:
    profile = simulator.load_profile("t4")
    for key, value in changes.items():
        if value is None:
            del profile[key]
        else:
            profile[key] = value
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(profile))
    return path


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory_bytes": None}, "memory_bytes is missing"),
        ({"memory_bytes": "16 GiB"}, "memory_bytes: '16 GiB' is not int"),
        ({"memory_bytes": -1}, "memory_bytes: -1 is negative"),
        ({"mig_capable": True}, "mig_capable: True is not int"),
        ({"memory_byte": 1}, "memory_byte is not a profile key"),
    ],
)
def test_a_wrong_profile_is_refused_by_key_and_value(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(simulator.ProfileError, match=told):
        simulator.create(tmp_path / "machine", _changed(tmp_path, **changes))
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"profile": "h201"},
            (
                'profile "h201": unknown. '
                "Use one of a100-40gb, a100-pcie-pairs, h200, t4, t4-driver-520"
            ),
        ),
        ({"cards": 0}, "cards=0: must be between 1 and 16"),
        ({"cards": 17}, "cards=17: must be between 1 and 16"),
        ({"time_scale": 0}, "time_scale=0: must be above 0"),
        ({"driver_version": "999.1"}, "driver_version=999.1: unknown. Add its cuda_version"),
        ({"cuda_version": "13.7"}, "cuda_version=13.7: unknown. Add its driver_version"),
    ],
)
def test_an_impossible_simulation_is_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(simulator.ProfileError, match=told):
        simulator.create(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "driver", "cuda"),
    [
        ({}, "580.65.06", 13000),
        ({"cuda_version": "11.8"}, "520.61.05", 11080),
        ({"driver_version": "550.90.07"}, "550.90.07", 12040),
        ({"driver_version": "700.1", "cuda_version": "13.9"}, "700.1", 13090),
    ],
)
def test_nvml_reports_driver_and_cuda_version(
    simulate: Callable[..., SimulatorMachine], options: dict[str, str], driver: str, cuda: int
) -> None:
    told = simulate(**options).ask("nvml.py")
    assert (told["driver"], told["cuda"]) == (driver, cuda)


def test_the_cdi_spec_names_cards_by_index_and_uuid(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    made = simulate(profile="t4", cards=2).simulator
    spec = json.loads(made.cdi.read_text())
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "nvidia.com/gpu")
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in spec["devices"]
    }
    assert nodes == {
        "0": ["/dev/nvidia0"],
        made.uuids[0]: ["/dev/nvidia0"],
        "1": ["/dev/nvidia1"],
        made.uuids[1]: ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }
    for mount in spec["containerEdits"]["mounts"]:
        assert Path(mount["hostPath"]).is_file()
    mounted = {mount["containerPath"]: mount for mount in spec["containerEdits"]["mounts"]}
    assert "rw" in mounted["/dev/gpushare-sim"]["options"]
    assert {Path(path).name for path in mounted} == {
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "gpushare-sim",
    }
    for node in spec["containerEdits"]["deviceNodes"]:
        assert (node["type"], node["major"], node["minor"]) == ("c", 195, 255)


def test_the_cdi_spec_has_the_capabilities_of_every_instance_that_there_can_be(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    made = simulate(cards=2, mig=("1g.18gb", "1g.18gb")).simulator
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in json.loads(made.cdi.read_text())["devices"]
    }
    # 3 is /proc/driver/nvidia-caps/mig-minors' gpu0/gi0/access, 138 is gpu1/gi0/access.
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (138 + 18, 138 + 19)]
    assert nodes["1:1"] == nodes[made.instances[3]] == ["/dev/nvidia1", *caps]
    assert {f"1:{number}" for number in range(7)} < nodes.keys()
    assert nodes["all"] == ["/dev/nvidia0", "/dev/nvidia1"]


def test_the_same_profile_makes_the_same_uuids(simulate: Callable[..., SimulatorMachine]) -> None:
    first, second = simulate(cards=2).simulator, simulate(cards=2).simulator
    assert first.uuids == second.uuids
    assert len(set(first.uuids)) == 2


def test_a_driver_may_use_memory_of_its_own_for_a_launch(tmp_path: Path) -> None:
    for profile, expected in (("t4", 0), ("t4-driver-520", 32768)):
        made = simulator.create(tmp_path / profile, profile)
        with made.device.open("rb") as file:
            content = file.read(4096)[ctypes.sizeof(device_file.Header) :]
        assert device_file.Profile.from_buffer_copy(content).launch_bytes == expected


def test_the_device_file_costs_no_disk(machine: SimulatorMachine) -> None:
    status = machine.simulator.device.stat()
    assert status.st_size == device_file.FILE_BYTES
    assert status.st_blocks * 512 < 1 << 20
    assert status.st_mode & 0o777 == 0o666


def test_the_command_prints_the_line_to_set(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpushare.simulator", "create", str(tmp_path / "m")]
    done = subprocess.run(
        [*command, "--profile", "t4", "--cards", "2"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"export GPUSHARE_SIM_DEVICE={tmp_path}/m/device\n"
    failed = subprocess.run(
        [*command, "--profile", "none"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith('gpushare: profile "none": unknown')
