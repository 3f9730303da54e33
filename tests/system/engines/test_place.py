# SPDX-License-Identifier: Apache-2.0
"""The places that tests run engines in, wherever the checkout is and whatever else runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.stack import Stack
from tests.stack.distribution import DEBIAN13


@pytest.mark.parametrize("above", ["/tmp", "/run", "/var/tmp", "/root"])
def test_a_folder_passed_to_a_booted_machine_is_there(above: str) -> None:
    """systemd mounts a tmpfs on /tmp and /run, and a checkout may be there."""
    with TemporaryDirectory(dir=above) as folder:
        Path(folder, "file").write_text("content")
        with Stack(
            distribution=DEBIAN13, cgroups="v2", booted=True, host_paths=[Path(folder)]
        ) as made:
            argv = made.argv("cat", f"{folder}/file")
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("content", "")


def test_a_hierarchy_that_is_mounted_twice_is_in_a_place_once(tmp_path: Path) -> None:
    """A test that runs beside this one may mount one for itself (faults/test_driver_answers.py)."""
    again = tmp_path / "freezer"
    again.mkdir()
    subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "none", str(again)], check=True)
    try:
        with Stack(distribution=DEBIAN13, cgroups="v1") as made:
            argv = made.argv("ls", "/sys/fs/cgroup/freezer")
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
    finally:
        subprocess.run(["umount", "--lazy", str(again)], check=True)
    assert "tasks" in done.stdout, done.stderr
