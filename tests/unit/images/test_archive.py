# SPDX-License-Identifier: Apache-2.0
"""An image in a file: of its layers the names, and nothing that leaves the tree."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from gpushare.images import NotFound, archive, open_image
from gpushare.images.archive import LayerIndex
from gpushare.oci.rootfs import Rootfs

LIB = "usr/local/cuda-12.4/lib64"
CUDART = f"{LIB}/libcudart.so.12.4.127"
CONFIG = {"config": {"Env": ["CUDA_VERSION=12.4.1"], "Cmd": ["vllm"]}}


def layer(*members: str | tarfile.TarInfo) -> bytes:
    """Return a tar of empty files, of directories (that end in /), and of what is given whole."""
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            if isinstance(member, str) and member.endswith("/"):
                info.type = tarfile.DIRTYPE
            tar.addfile(info)
    return data.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def write_archive(
    path: Path, files: Mapping[str, bytes], links: Sequence[tarfile.TarInfo] = ()
) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, BytesIO(content))
        for one in links:
            tar.addfile(one)
    return path


def saved(path: Path, *layers: bytes) -> Path:
    """Write what `docker save` does."""
    files = {f"{number}.tar": content for number, content in enumerate(layers)}
    manifest = [{"Config": "config.json", "Layers": list(files)}]
    config = {"config.json": json.dumps(CONFIG).encode()}
    return write_archive(path, {**files, **config, "manifest.json": json.dumps(manifest).encode()})


def oci(path: Path, content: bytes) -> Path:
    """Write an OCI archive with one layer, compressed, behind an index of indices."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    config, layers = blob(json.dumps(CONFIG).encode()), [blob(gzip.compress(content))]
    manifest = blob(json.dumps({"config": config, "layers": layers}).encode())
    index = blob(json.dumps({"manifests": [manifest]}).encode())
    return write_archive(path, {**blobs, "index.json": json.dumps({"manifests": [index]}).encode()})


def names(path: Path, directory: str) -> list[str]:
    with open_image(str(path)) as found:
        assert found.root_fd is not None
        return Rootfs(found.root_fd).names(directory)


@pytest.mark.parametrize("kind", ["saved", "oci"])
def test_an_archive_has_the_facts_of_its_image(kind: str, tmp_path: Path) -> None:
    write = saved if kind == "saved" else oci
    path = write(tmp_path / "image.tar", layer(f"{LIB}/", CUDART, f"{LIB}/libcublas.so.12"))
    with open_image(str(path)) as found:
        assert (found.kind, found.args) == ("archive", ("vllm",))
        assert found.variables == {"CUDA_VERSION": "12.4.1"}
    assert names(path, f"/{LIB}") == ["libcudart.so.12.4.127"]


def test_a_layer_is_put_over_those_beneath_it(tmp_path: Path) -> None:
    wheel = "opt/venv/lib/python3.12/site-packages/nvidia_cuda_runtime_cu12-12.8.90.dist-info"
    lower = layer(CUDART, "usr/local/cuda-11.8/lib64/libcudart.so.11.8.89", f"{wheel}/METADATA")
    upper = layer(
        f"{LIB}/.wh.libcudart.so.12.4.127",
        f"{LIB}/libcudart.so.12.6.77",
        link("usr/local/cuda", "cuda-12.4"),
        "usr/local/cuda-11.8/.wh..wh..opq",
    )
    path = saved(tmp_path / "image.tar", lower, upper)
    assert names(path, f"/{LIB}") == ["libcudart.so.12.6.77"]
    assert names(path, "/usr/local/cuda/lib64") == ["libcudart.so.12.6.77"]
    assert names(path, "/usr/local/cuda-11.8/lib64") == []
    assert names(path, f"/{wheel.rpartition('/')[0]}") == [wheel.rpartition("/")[2]]


def test_entries_outside_the_tree_are_skipped(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "libcudart.so.11.8.89").touch()
    fifo = tarfile.TarInfo(f"{LIB}/libcudart.so.12.1.1")
    fifo.type = tarfile.FIFOTYPE
    path = saved(
        tmp_path / "image.tar",
        layer(
            "../outside/libcudart.so.12.4.127",
            link("cuda", str(outside)),
            "cuda/libcudart.so.12.4.127",
            "cuda/.wh.libcudart.so.11.8.89",
            link("usr", "../outside"),
            "usr/libcudart.so.12.4.127",
            "/".join(["deep"] * 64) + "/libcudart.so.12.4.127",
            fifo,
            ".wh..wh..opq",
        ),
    )
    assert names(path, "/cuda") == []
    assert [found.name for found in outside.iterdir()] == ["libcudart.so.11.8.89"]


def test_the_number_of_names_is_bounded_and_the_bound_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MOST_NAMES", 32)
    many = layer(*(f"{LIB}/libcudart.so.12.4.{number}" for number in range(200)))
    path = saved(tmp_path / "image.tar", many)
    assert len(names(path, f"/{LIB}")) <= 32
    with open_image(str(path)) as found:
        assert found.note == "it has over 32 such names; the rest was ignored"


def test_links_that_lead_nowhere_near_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MOST_NAMES", 32)
    links = (link(f"usr/share/doc/a/b/{number}", "elsewhere") for number in range(200))
    path = saved(tmp_path / "image.tar", layer(*links, link(f"{LIB}/libcudart.so.12", "x"), CUDART))
    assert names(path, f"/{LIB}") == ["libcudart.so.12", "libcudart.so.12.4.127"]
    assert names(path, "/usr") == ["local"]


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        layer("a"),
        layer("manifest.json"),
        layer("index.json"),
    ],
    ids=["text", "another tar", "an empty manifest", "an empty index"],
)
def test_a_file_that_is_no_image_is_reported(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(content)
    with (
        pytest.raises(NotFound, match="is not an image saved by docker, podman") as raised,
        open_image(str(path)),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_no_name_is_no_image() -> None:
    with pytest.raises(NotFound, match="Name an image, a container or a path"), open_image(""):
        pass


def test_a_manifest_that_names_missing_layers_is_reported(tmp_path: Path) -> None:
    manifest = json.dumps([{"Config": "config.json", "Layers": ["no.tar"]}]).encode()
    files = {"manifest.json": manifest, "config.json": json.dumps(CONFIG).encode()}
    with pytest.raises(NotFound), open_image(str(write_archive(tmp_path / "image.tar", files))):
        pass


def test_a_skeleton_goes_with_its_block() -> None:
    with LayerIndex.made() as made:
        folder = Path(f"/proc/self/fd/{made.fd}").readlink()
        assert folder.is_dir()
    assert not folder.exists()
