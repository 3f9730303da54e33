# SPDX-License-Identifier: Apache-2.0
"""The source distribution: what `pip install` compiles if no wheel fits."""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
from pathlib import Path

from .artifact import Artifact
from .wheel import only_file
from .workspace import Workspace, run

#: The PEP 517 hook of pyproject.toml's build-backend; pip has no command for it.
_HOOK = "import sys, scikit_build_core.build as backend; backend.build_sdist(sys.argv[1])"


def make(workspace: Workspace) -> list[Artifact]:
    """Build the source distribution into `dist`."""
    folder = workspace.scratch("sdist")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run([sys.executable, "-c", _HOOK, folder], cwd=workspace.root, env=workspace.environment())
    done = only_file(folder, "*.tar.gz")
    place = workspace.dist / done.name
    _write_sorted(done, place, workspace.epoch)
    return [Artifact(place, ())]


def _write_sorted(source: Path, target: Path, epoch: int) -> None:
    """Copy an archive with its members in order; the hook lists them as the file system does."""
    with (
        tarfile.open(source) as tar,
        target.open("wb") as file,
        # Without a name in its header.
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            archive.addfile(member, tar.extractfile(member) if member.isfile() else None)
