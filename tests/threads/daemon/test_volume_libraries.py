# SPDX-License-Identifier: Apache-2.0
"""Another process lists what volumes have under the driver's names; one that hangs is left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpushare.daemon.lifecycle import volume_libraries
from gpushare.daemon.lifecycle.volume_libraries import find_libraries

NAME = "libcuda.so.560.35.03"


def test_names_are_found_beneath_the_volume_and_without_links(tmp_path: Path) -> None:
    volume, host = tmp_path / "volume", tmp_path / "host"
    for folder in (volume / "real", volume / "other", host):
        folder.mkdir(parents=True)
        (folder / NAME).touch()
    (volume / "real/libcuda.so.1").symlink_to(NAME)
    (volume / "real/libnvidia-ml.so").symlink_to(f"/real/{NAME}")  # of the volume's root
    (volume / "real/libcuda.so").symlink_to(host / NAME)  # there is no such path in the volume
    (volume / "real/libcudart.so.12").touch()
    (volume / "lib").symlink_to("real")
    (volume / "out").symlink_to("../host")
    folders = [(str(volume), "/lib"), (str(volume), "/out"), (str(volume), "/none"), ("/gone", "/")]
    assert find_libraries(folders) == [(0, f"/real/{NAME}")] * 3


def test_a_volume_that_does_not_answer_is_left_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_libraries, "_PROGRAM", "import time; time.sleep(1000)")
    monkeypatch.setattr(volume_libraries, "_SECONDS", 0.05)
    assert find_libraries([(str(tmp_path), "/")]) is None
    [child] = volume_libraries._hanging
    child.wait()
    hanging = [child] * volume_libraries._MOST_HANGING
    monkeypatch.setattr(child, "poll", lambda: None)
    volume_libraries._hanging[:] = hanging
    monkeypatch.setattr(subprocess, "Popen", None)  # no other one is started
    assert find_libraries([(str(tmp_path), "/")]) is None
    volume_libraries._hanging.clear()
