# SPDX-License-Identifier: Apache-2.0
"""What doctor says of `docker run --gpus`, by what dockerd finds and which version it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.checks import Check, engines


class DockerInstallation:
    """A machine's docker: its version, and the programs where dockerd looks for them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.setattr(engines, "PATH", str(root))
        monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")

    def program(self, name: str, script: str = "") -> str:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def answers(self, version: str) -> None:
        self.program("docker", f"echo {version}")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerInstallation:
    return DockerInstallation(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("version", "said", "not_said"),
    [
        ("20.10.24+dfsg1", "-e GPUSHARE_MEMORY=4GiB", "--device"),
        ("26.1.5", '"features": {"cdi": true}', "nvidia-ctk"),
        ("28.2.0", "or --device nvidia.com/gpu=0", "features"),
        ("29.0.1", "or --device nvidia.com/gpu=0", "features"),
    ],
)
def test_without_nvidias_toolkit_the_message_says_what_to_write(
    docker: DockerInstallation, version: str, said: str, not_said: str
) -> None:
    docker.answers(version)
    check = engines.check_docker_gpus()
    assert check.level == "ok"
    assert "refused by dockerd (could not select device driver)" in check.text
    assert said in check.fix
    assert not_said not in check.fix


def test_for_a_silent_docker_the_portable_option_is_shown(docker: DockerInstallation) -> None:
    docker.program("docker", "echo no such host >&2; exit 1")
    assert engines.check_docker_gpus().fix == (
        "use -e GPUSHARE_MEMORY=4GiB, or -e GPUSHARE_COUNT=1 for a whole card"
    )


def test_with_the_hook_it_is_taken(docker: DockerInstallation) -> None:
    path = docker.program(engines.HOOK)
    assert engines.check_docker_gpus() == Check("ok", f"docker run --gpus: accepted, with {path}")


@pytest.mark.parametrize(("version", "taken"), [("28.2.2", False), ("28.3.0", True)])
def test_with_the_hook_of_cdi_alone_the_version_decides(
    docker: DockerInstallation, version: str, *, taken: bool
) -> None:
    docker.answers(version)
    docker.program(engines.CDI_HOOK)
    assert ("accepted, as a CDI device" in engines.check_docker_gpus().text) == taken
