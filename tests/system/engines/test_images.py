# SPDX-License-Identifier: Apache-2.0
"""Directories, bundles and processes, opened and not run; engines by what their programs say."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpushare.images import NotFound, open_image
from tests.unit.images.test_images import FAKE, names

pytestmark = pytest.mark.gate

CUDART = "usr/local/cuda-12.4/lib64/libcudart.so.12.4.127"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(FAKE)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    # Whatever engine this machine has is not asked.
    monkeypatch.setattr("gpushare.images._PROGRAMS", ("docker",))
    return folder


def test_of_a_process_its_own_root_is_opened() -> None:
    with subprocess.Popen(
        ["cat"],
        env={"CUDA_VERSION": "12.4.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(b"it runs\n")
        program.stdin.flush()
        program.stdout.readline()
        with open_image("train", program.pid) as found:
            assert (found.kind, found.variables) == ("container", {"CUDA_VERSION": "12.4.1"})
            assert found.args == ("cat",)
            assert found.root_fd is not None
            here, there = Path("/").stat(), os.fstat(found.root_fd)
            assert (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def test_an_image_is_found_through_its_engine(docker: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / CUDART).parent.mkdir(parents=True)
    inspected = {
        "Config": {"Env": ["CUDA_VERSION=12.4.1"], "Entrypoint": ["sh"], "Cmd": ["-c", "true"]},
        "GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": str(layer)}},
    }
    (docker / "image-inspect-cuda").write_text(json.dumps([inspected]))
    with open_image("cuda") as found:
        assert (found.kind, found.note) == ("image of docker", "")
        assert found.variables == {"CUDA_VERSION": "12.4.1"}
        assert found.args == ("sh", "-c", "true")
        assert names(found, "/usr/local") == ["cuda-12.4"]
    assert "create" not in (docker / "asked").read_text()


@pytest.mark.parametrize(
    ("answer", "told"),
    [(None, "docker has no image or container of that name"), ("{", "an unknown answer")],
)
def test_an_image_unknown_to_every_engine_is_reported_with_advice(
    answer: str | None, told: str, docker: Path
) -> None:
    if answer is not None:
        (docker / "image-inspect-cuda").write_text(answer)
    with pytest.raises(NotFound, match=told) as caught, open_image("cuda"):
        pass
    assert "Pull the image, or name a path" in str(caught.value)
