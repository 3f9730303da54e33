# SPDX-License-Identifier: Apache-2.0
"""What doctor says of `docker run --gpus`, by what dockerd finds and which version it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.checks import gpus
from gpushare.checks.check import Check


class Docker:
    """A machine's docker: its version, and the programs where dockerd looks for them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.setattr(gpus, "PATH", str(root))
        monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")

    def program(self, name: str, script: str = "") -> str:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def answers(self, version: str) -> None:
        self.program("docker", f"echo {version}")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    return Docker(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("version", "said", "not_said"),
    [
        ("20.10.24+dfsg1", "-e GPUSHARE_MEMORY=4GiB", "--device"),
        ("26.1.5", '"features": {"cdi": true}', "nvidia-ctk"),
        ("28.2.0", "or --device nvidia.com/gpu=0", "features"),
        ("29.0.1", "or --device nvidia.com/gpu=0", "features"),
    ],
)
def test_without_nvidias_toolkit_it_says_what_to_write(
    docker: Docker, version: str, said: str, not_said: str
) -> None:
    docker.answers(version)
    check = gpus.of_docker()
    assert check.level == "ok"
    assert "dockerd itself refuses it (could not select device driver)" in check.text
    assert said in check.fix
    assert not_said not in check.fix


def test_a_docker_that_does_not_answer_is_told_what_every_one_takes(docker: Docker) -> None:
    docker.program("docker", "echo no such host >&2; exit 1")
    assert gpus.of_docker().fix == (
        "write -e GPUSHARE_MEMORY=4GiB, or -e GPUSHARE_COUNT=1 for a whole card"
    )


def test_with_the_hook_it_is_taken(docker: Docker) -> None:
    path = docker.program(gpus.HOOK)
    assert gpus.of_docker() == Check("ok", f"docker run --gpus: taken, with {path}")


@pytest.mark.parametrize(("version", "taken"), [("28.2.2", False), ("28.3.0", True)])
def test_with_the_hook_of_cdi_alone_the_version_decides(
    docker: Docker, version: str, *, taken: bool
) -> None:
    docker.answers(version)
    docker.program(gpus.CDI_HOOK)
    assert ("taken, as a CDI device" in gpus.of_docker().text) == taken
