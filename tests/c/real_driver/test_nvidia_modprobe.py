# SPDX-License-Identifier: Apache-2.0
"""nvidia-modprobe without the kernel module."""

from __future__ import annotations

import subprocess

import nvidia_packages

from tests.real_driver import RealDriver, isolated


def test_it_fails_and_prints_nothing(real_driver: RealDriver) -> None:
    """gpushare/host/driver/device_nodes.py has modprobe say why."""
    program = real_driver.program("nvidia-modprobe")
    if not program.exists():
        assert real_driver.release != nvidia_packages.GATE
        return
    command = isolated(program, "-u", "-c", "0")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
