# SPDX-License-Identifier: Apache-2.0
"""The archive of an image: the same bytes for the same files, and what engines read in it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from packages import oci_archive
from packages.oci_archive import ImageConfig

from gpushare.images.archive import open_archive

EPOCH = 1_700_000_000
CONFIG = ImageConfig(
    name="localhost/made:1",
    architecture="amd64",
    entrypoint=["/bin/entry"],
    variables={"PATH": "/bin"},
    labels={"org.opencontainers.image.version": "1"},
)


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    """Two folders: a program and a link to it, and a file in a folder of its own."""
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    (lower / "bin").mkdir(parents=True)
    (lower / "bin/entry").write_text("#!/bin/sh\n")
    (lower / "bin/entry").chmod(0o755)
    (lower / "bin/link").symlink_to("entry")
    (upper / "usr/lib").mkdir(parents=True)
    (upper / "usr/lib/libcuda.so.570.10").write_bytes(b"library")
    return [lower, upper]


def blob(archive: Path, digest: str) -> bytes:
    with tarfile.open(archive) as opened:
        content = opened.extractfile(f"blobs/{digest.replace(':', '/')}")
        assert content is not None
        read = content.read()
    assert f"sha256:{hashlib.sha256(read).hexdigest()}" == digest
    return read


def document(archive: Path, digest: str) -> Any:
    return json.loads(blob(archive, digest))


def manifest(archive: Path) -> Any:
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        assert index is not None
        (entry,) = json.loads(index.read())["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == CONFIG.name
    return document(archive, entry["digest"])


def test_times_owners_and_order_of_the_files_change_nothing(
    layers: list[Path], tmp_path: Path
) -> None:
    made = [tmp_path / "one.tar", tmp_path / "two.tar"]
    oci_archive.write(made[0], layers, CONFIG, EPOCH)
    for layer in layers:
        for path in layer.rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)
    (layers[0] / "bin/link").unlink()
    (layers[0] / "bin/link").symlink_to("entry")
    oci_archive.write(made[1], layers, CONFIG, EPOCH)
    assert made[0].read_bytes() == made[1].read_bytes()


def test_layers_are_those_of_the_configuration_and_belong_to_root(
    layers: list[Path], tmp_path: Path
) -> None:
    place = tmp_path / "image.tar"
    oci_archive.write(place, layers, CONFIG, EPOCH)
    read = manifest(place)
    config = document(place, read["config"]["digest"])
    tars = [gzip.decompress(blob(place, layer["digest"])) for layer in read["layers"]]
    assert config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars
    ]
    assert config["config"]["Labels"] == CONFIG.labels
    (tmp_path / "layer.tar").write_bytes(tars[0])
    with tarfile.open(tmp_path / "layer.tar") as opened:
        entries = {entry.name: entry for entry in opened}
    assert list(entries) == ["bin", "bin/entry", "bin/link"]
    assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, EPOCH)}
    assert entries["bin/entry"].mode == 0o755
    assert entries["bin/link"].linkname == "entry"


def test_gpushare_reads_the_image_as_one_of_its_own_targets(
    layers: list[Path], tmp_path: Path
) -> None:
    place = tmp_path / "image.tar"
    oci_archive.write(place, layers, CONFIG, EPOCH)
    with open_archive(place) as image:
        assert image.args == ("/bin/entry",)
        assert image.variables["PATH"] == "/bin"
        assert image.root_fd is not None
        assert os.access("usr/lib/libcuda.so.570.10", os.F_OK, dir_fd=image.root_fd)
