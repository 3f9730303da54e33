# SPDX-License-Identifier: Apache-2.0
"""Directories, bundles and processes, opened and not run; engines by what their programs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare import images
from gpushare.images import ImageTarget, NotFound, open_image
from gpushare.oci.rootfs import Rootfs

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
    (tmp_path / "image.tar").touch()
    with pytest.raises(NotFound, match="Load the image"), open_image(f"{tmp_path}/image.tar"):
        pass
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(NotFound, match=r"config\.json"), open_image(str(tmp_path)):
        pass


def test_layers_that_are_not_there_are_no_tree(tmp_path: Path) -> None:
    for layers in ((), (tmp_path / "no",), (tmp_path / "no", tmp_path / "neither")):
        with pytest.raises(OSError, match=r".+"), images.open_layers(layers):
            pass
