# SPDX-License-Identifier: Apache-2.0
"""Profiles, the device file and the CDI spec."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file

ROOT = Path(__file__).parents[3]


def test_python_and_c_lay_the_file_out_alike(tmp_path: Path) -> None:
    structures = {
        "sim_header": device_file.Header,
        "sim_profile": device_file.Profile,
        "sim_faults": device_file.Faults,
    }
    wanted = {
        "SIM_FILE_BYTES": device_file.FILE_BYTES,
        "SIM_MAGIC": device_file.MAGIC,
        "SIM_LAYOUT": device_file.LAYOUT,
        "SIM_CARDS": device_file.CARDS_MOST,
        "offsetof(struct sim_device, faults)": device_file.FAULTS_OFFSET,
    }
    for name, mirror in structures.items():
        wanted[f"sizeof(struct {name})"] = ctypes.sizeof(mirror)
        for field, *_ in mirror._fields_:
            wanted[f"offsetof(struct {name}, {field})"] = getattr(mirror, field).offset
    lines = ['#include "device.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void){"]
    lines += [f'printf("%llu\\n", (unsigned long long){figure});' for figure in wanted]
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join([*lines, "}"]))
    subprocess.run(
        ["gcc", "-I", str(ROOT / "simulator"), str(source), "-o", str(program)], check=True
    )
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert dict(zip(wanted, map(int, printed.split()), strict=True)) == wanted


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory_bytes": None}, "memory_bytes is missing"),
        ({"memory_bytes": "16 GiB"}, "memory_bytes: '16 GiB' is not int"),
        ({"memory_bytes": -1}, "memory_bytes: -1 is negative"),
        ({"mig_capable": True}, "mig_capable: True is not int"),
        ({"memory_byte": 1}, "memory_byte is not a profile key"),
    ],
)
def test_a_wrong_profile_is_refused_by_key_and_value(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    profile = {
        key: value
        for key, value in (device_file.load_profile("t4") | change).items()
        if value is not None
    }
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(profile))
    with pytest.raises(device_file.ProfileError, match=told):
        simulator.create(tmp_path / "machine", path)
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"profile": "h201"}, 'profile "h201": unknown. Use one of a100-40gb, a100-pcie-pairs'),
        ({"cards": 17}, "cards=17: must be between 1 and 16"),
        ({"time_scale": 0}, "time_scale=0: must be above 0"),
        ({"driver_version": "999.1"}, "driver_version=999.1: unknown. Add its cuda_version"),
        ({"cuda_version": "13.7"}, "cuda_version=13.7: unknown. Add its driver_version"),
        ({"profile": "t4", "mig": ["1g.18gb"]}, "mig=1g.18gb: unknown"),
        ({"mig": ["1g.18gb", "4g.71gb"]}, "there is no place for 4g.71gb"),
        ({"mig": ["7g.141gb", "1g.18gb"]}, "uses 9 of 8 parts of the memory and 8 of 7 slices"),
        ({"cards": 8, "mig": ["1g.18gb", "1g.18gb"]}, "more than 16 cards and instances"),
    ],
)
def test_an_impossible_simulation_is_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(device_file.ProfileError, match=re.escape(told)):
        simulator.create(tmp_path, **options)


def test_a_running_machine_refuses_what_it_cannot_become(tmp_path: Path) -> None:
    made = simulator.create(tmp_path)
    for version in ("new", "5" * 80, "590,1"):
        with pytest.raises(device_file.ProfileError, match=r"Use, for example, 590"):
            simulator.change_driver(made.device, version)
    with pytest.raises(device_file.ProfileError, match=r"unknown\. Use one of"):
        simulator.partition(made.device, ["9g.1gb"])


def test_the_cdi_spec_names_cards_and_every_instance_that_there_can_be(tmp_path: Path) -> None:
    made = simulator.create(tmp_path, cards=2, mig=("1g.18gb", "1g.18gb"))
    spec = json.loads(made.cdi.read_text())
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in spec["devices"]
    }
    # 138 is gpu1/gi0/access in /proc/driver/nvidia-caps/mig-minors.
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (138 + 18, 138 + 19)]
    assert nodes["0"] == nodes[made.uuids[0]] == ["/dev/nvidia0"]
    assert nodes["1:1"] == nodes[made.instances[3]] == ["/dev/nvidia1", *caps]
    assert {f"1:{number}" for number in range(7)} < nodes.keys()
    assert nodes["all"] == ["/dev/nvidia0", "/dev/nvidia1"]
    mounts = {Path(mount["containerPath"]).name for mount in spec["containerEdits"]["mounts"]}
    assert mounts == {"libcuda.so.1", "libnvidia-ml.so.1", "gpushare-sim"}
