# SPDX-License-Identifier: Apache-2.0
"""Profiles, the device file and the CDI spec."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file
from tests.compiled import ROOT, figures


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
    header = ROOT / "simulator/device.h"
    assert figures(tmp_path, header, {figure: figure for figure in wanted}) == wanted


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"profile": "h201"}, 'profile "h201": unknown. Use one of a100-40gb, a100-pcie-pairs'),
        ({"cards": 17}, "cards=17: must be between 1 and 16"),
        ({"time_scale": 0}, "time_scale=0: must be above 0"),
        ({"driver_version": "999.1"}, "driver_version=999.1: unknown. Add its cuda_version"),
        ({"cuda_version": "13", "driver_version": "1"}, "cuda_version=13: not a version"),
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
