# SPDX-License-Identifier: Apache-2.0
"""The units of engines, of gpushared and of what setup adds, put together as a boot would."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.engines import systemd_unit
from tests.stack import Stack

UNITS = Path(__file__).parents[3] / "packaging/systemd"
FOLDER = Path("/etc/systemd/system")
SERVICES = ("docker", "containerd", "podman-restart", "podman")
LAUNCHER = Path("/usr/local/lib/gpushare/current/bin/gpushare-runtime")


def inside(stage: Stack, script: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        stage.argv("sh", "-c", script), check=False, capture_output=True, text=True, input=given
    )


def write(stage: Stack, path: Path, text: str) -> None:
    inside(stage, f"mkdir -p {path.parent} && cat >{path}", text).check_returncode()


@pytest.fixture
def composed(stage: Stack) -> Iterator[Stack]:
    """The distribution's own units, with ours."""
    ours = [FOLDER / path.name for path in UNITS.glob("gpushared.*")]
    for path in ours:
        # The program is not there; whether it is, is not the question.
        text = (UNITS / path.name).read_text().replace("/usr/local/bin/gpushared", "/bin/true")
        write(stage, path, text)
    drop_ins = [FOLDER / f"{service}.service.d/gpushare.conf" for service in SERVICES]
    for path in drop_ins:
        write(stage, path, systemd_unit.UnitDropIn().register("", LAUNCHER, default=False))
    yield stage
    names = " ".join(str(path) for path in (*ours, *drop_ins))
    inside(stage, f"rm {names}").check_returncode()


def verify(stage: Stack) -> str:
    """Return what systemd has to say of them together with multi-user.target."""
    units = " ".join(
        ["gpushared.socket", "gpushared.service", *(f"{one}.service" for one in SERVICES)]
    )
    done = inside(stage, f"systemd-analyze verify --man=no {units} multi-user.target 2>&1")
    return done.stdout


def test_nothing_is_ordered_in_a_circle_and_no_setting_is_unknown(composed: Stack) -> None:
    said = verify(composed)
    assert "ordering cycle" not in said
    ours = [line for line in said.splitlines() if "gpushare" in line]
    assert ours == []


def test_a_circle_would_be_seen(composed: Stack) -> None:
    """Were the daemon before the engines and behind them."""
    path = FOLDER / "gpushared.socket.d/circle.conf"
    write(composed, path, "[Unit]\nAfter=docker.service\n")
    said = verify(composed)
    inside(composed, f"rm -r {path.parent}").check_returncode()
    assert "ordering cycle" in said
