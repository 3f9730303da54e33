# SPDX-License-Identifier: Apache-2.0
"""Directories, bundles and processes, opened and not run; engines by what their programs say."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from gpushare.images import ImageTarget, NotFound, engine_images, open_image
from gpushare.oci.rootfs import Rootfs

CUDART = "usr/local/cuda-12.4/lib64/libcudart.so.12.4.127"

#: A program that answers as docker does: by what is written beside it.
FAKE = """#!/usr/bin/env python3
import pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
words = sys.argv[1:]
with (here / "asked").open("a") as asked:
    asked.write(" ".join(words) + "\\n")
answer = here / "-".join(word for word in words if word != "--" and "/" not in word)
if not answer.exists():
    sys.exit(f"Error: No such {words[0]}: {words[-1]}")
sys.stdout.buffer.write(answer.read_bytes())
"""


def names(found: ImageTarget, directory: str) -> list[str]:
    assert found.root_fd is not None
    return Rootfs(found.root_fd).names(directory)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(FAKE)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    # Whatever engine this machine has is not asked.
    monkeypatch.setattr("gpushare.images.engine_images._PROGRAMS", ("docker",))
    return folder


def test_a_root_directory_says_nothing_of_its_variables(tmp_path: Path) -> None:
    (tmp_path / "usr/local/cuda").mkdir(parents=True)
    with open_image(str(tmp_path)) as found:
        assert (found.kind, found.variables) == ("root directory", {})
        assert "without a config.json" in found.note
        assert names(found, "/usr/local") == ["cuda"]


@pytest.mark.parametrize("path", ["rootfs", "absolute"])
def test_a_bundle_has_its_process_and_its_root(path: str, tmp_path: Path) -> None:
    (tmp_path / "rootfs/opt/mine").mkdir(parents=True)
    root = "rootfs" if path == "rootfs" else str(tmp_path / "rootfs")
    document = {
        "root": {"path": root},
        "process": {"args": ["vllm", "serve"], "env": ["CUDA_VERSION=12.4.1", "A=1", "A=2"]},
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    with open_image(str(tmp_path)) as found:
        assert found.kind == "bundle"
        assert found.variables == {"CUDA_VERSION": "12.4.1", "A": "2"}
        assert found.args == ("vllm", "serve")
        assert names(found, "/opt") == ["mine"]


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No such file"), open_image(str(tmp_path / "nothing")):
        pass
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(NotFound, match=r"config\.json"), open_image(str(tmp_path)):
        pass


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


def test_without_an_engine_the_message_requests_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.images.engine_images._PROGRAMS", ())
    with (
        pytest.raises(NotFound, match="neither docker nor podman is installed"),
        open_image("cuda:12"),
    ):
        pass


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


def test_a_container_that_runs_is_its_processs_root(docker: Path) -> None:
    inspected = {
        "Path": "sh",
        "Args": ["-c", "true"],
        "State": {"Running": True, "Pid": os.getpid()},
        "Config": {"Env": ["CUDA_VERSION=12.4.1"]},
    }
    (docker / "container-inspect-train").write_text(json.dumps([inspected]))
    with open_image("train") as found:
        assert (found.kind, found.args) == ("container", ("sh", "-c", "true"))
        assert found.variables == {"CUDA_VERSION": "12.4.1"}
        assert found.root_fd is not None


def test_where_the_layers_cannot_be_reached_the_names_are_exported(docker: Path) -> None:
    inspected = {"Config": {"Env": None}, "GraphDriver": {"Name": "vfs", "Data": None}}
    (docker / "image-inspect-cuda").write_text(json.dumps([inspected]))
    (docker / "create---pull=never---network=none-cuda").write_text("a warning\n4f1c\n")
    (docker / "rm---force-4f1c").write_text("")
    exported = BytesIO()
    with tarfile.open(fileobj=exported, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(CUDART))
    (docker / "export-4f1c").write_bytes(exported.getvalue())
    with open_image("cuda") as found:
        assert found.note == ""
        assert names(found, f"/{CUDART.rpartition('/')[0]}") == ["libcudart.so.12.4.127"]
    # What was made to be exported is gone, and was never started.
    asked = (docker / "asked").read_text().splitlines()
    assert asked[-1] == "rm --force 4f1c"
    assert not [line for line in asked if line.startswith(("run", "start"))]


def test_if_no_file_can_be_read_the_images_configuration_is_used(docker: Path) -> None:
    inspected = {"Config": {"Env": ["CUDA_VERSION=12.4.1"]}}
    (docker / "image-inspect-cuda").write_text(json.dumps([inspected]))
    with open_image("cuda") as found:
        assert found.root_fd is None
        assert found.variables == {"CUDA_VERSION": "12.4.1"}
        assert found.note.startswith(
            "only its configuration is known, because its files could not be read"
        )


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


def test_layers_that_are_not_there_are_no_tree(tmp_path: Path) -> None:
    for layers in ((), (tmp_path / "no",), (tmp_path / "no", tmp_path / "neither")):
        with pytest.raises(OSError, match=r".+"), engine_images.open_layers(layers):
            pass
