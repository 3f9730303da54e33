# SPDX-License-Identifier: Apache-2.0
"""Cards whose memory is the machine's: NVML tells of them less, or something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.simulator import device_file

ASK = """
import json, sys
from gpushare.daemon.cards.nvml_calls import Devices
devices = Devices(sys.argv[1])
first = devices.describe(), devices.look(known=False)
print(json.dumps([*first, devices.look(known=True, brief=True)]))
"""


@pytest.mark.parametrize("profile", ["gb10", "unified-untold", "unified-machine"])
def test_a_card_without_memory_of_its_own_is_refused_by_name(profile: str, tmp_path: Path) -> None:
    machine = simulator.create(tmp_path / "machine", profile)
    library = device_file.libraries() / "libnvidia-ml.so.1"
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(library)],
        env={**os.environ, **machine.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    described, first, second = json.loads(done.stdout)
    assert described["cards"] == []
    (refused,) = described["lost"]
    name = device_file.load_profile(profile)["name"]
    assert refused["error"].startswith(f"card 0 ({name}): it has no memory of its own")
    assert refused["unified"]["uuid"] == machine.uuids[0]
    assert first["cards"] == []
    assert "cards" not in second  # nothing is new
