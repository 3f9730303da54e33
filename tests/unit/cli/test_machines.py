# SPDX-License-Identifier: Apache-2.0
"""The kinds of machines that `gpushare doctor` knows, as files in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.checks import Check
from gpushare.checks.machine import check_machine


def of(root: Path, *files: str, architecture: str = "x86_64") -> list[Check]:
    """Return what is found where these files are, each as PATH or PATH=CONTENT."""
    for file in files:
        path, _, content = file.partition("=")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return list(check_machine(root, architecture))


def test_a_usual_server_has_no_findings(tmp_path: Path) -> None:
    assert of(tmp_path, "sys/fs/selinux/enforce=0", "etc/nvidia/gridd.conf.template") == []


@pytest.mark.parametrize(
    ("files", "level", "text"),
    [
        (("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"), "warn", "WSL 2: all cards share one device"),
        (("etc/nv_tegra_release",), "warn", "Jetson: the GPU has no dedicated memory"),
        (
            ("proc/device-tree/compatible=nvidia,p3737\0nvidia,tegra234\0",),
            "warn",
            "Jetson: the GPU has no dedicated memory",
        ),
        (("etc/nvidia/gridd.conf",), "ok", "vGPU guest (GRID driver)"),
        (("sys/fs/selinux/enforce=1",), "warn", "SELinux is enforcing"),
    ],
)
def test_an_unusual_server_gets_advice(
    tmp_path: Path, files: tuple[str, ...], level: str, text: str
) -> None:
    (found,) = of(tmp_path, *files)
    assert found.level == level
    assert found.text.startswith(text)


def test_wsl_without_a_card_of_windows_is_a_usual_machine(tmp_path: Path) -> None:
    assert of(tmp_path, "usr/lib/wsl/lib/libd3d12.so") == []


def test_the_processor_is_known_or_refused(tmp_path: Path) -> None:
    (arm,) = of(tmp_path, architecture="aarch64")
    assert (arm.level, arm.text.partition(":")[0]) == ("ok", "aarch64")
    (other,) = of(tmp_path, architecture="riscv64")
    assert other.level == "fail"
    assert other.text == "gpushare does not run on riscv64: it knows aarch64, x86_64"
