# SPDX-License-Identifier: Apache-2.0
"""The image of the probe: an archive that engines load, with all that a CUDA program needs."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from gpushare.verify import image


def test_its_layer_holds_the_probe_a_loader_and_a_c_library(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"a program")
    with tarfile.open(fileobj=io.BytesIO(image.build(probe))) as archive:
        manifest = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        config = json.load(archive.extractfile(manifest[0]["Config"]) or io.BytesIO())
        layer = archive.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            names = files.getnames()
    assert manifest[0]["RepoTags"] == [image.TAG]
    assert config["config"]["Cmd"] == [image.PROGRAM]
    assert image.PROGRAM.lstrip("/") in names
    assert any(name.endswith("libc.so.6") for name in names)
    assert any("ld-linux" in name for name in names)


def test_unpacked_it_is_a_root_file_system(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"a program")
    image.unpack(tmp_path / "root", probe, {"/etc/motd": b"hello"})
    assert (tmp_path / "root" / image.PROGRAM.lstrip("/")).read_bytes() == b"a program"
    assert (tmp_path / "root/etc/motd").read_bytes() == b"hello"
