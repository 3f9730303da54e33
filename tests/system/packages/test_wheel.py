# SPDX-License-Identifier: Apache-2.0
"""Wheels: they are what their names say, and the same bytes from the sdist, elsewhere, offline."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packages import wheel
from packages.artifact import SBOM
from packages.workspace import Workspace

from tools.check import symbols

pytestmark = pytest.mark.needs("package")

BUILD = """
import sys
from pathlib import Path
from packages import sdist, wheel
from packages.workspace import Workspace
workspace = Workspace.of(Path(sys.argv[1]), Path(sys.argv[2]))
workspace.dist.mkdir()
sdist.make(workspace)
workspace.publish(wheel.make_one(workspace, sys.argv[3]))
"""


def unpacked(archive: Path, folder: Path) -> list[Path]:
    """Unpack a wheel, and return its programs and libraries."""
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    return [path for path in folder.rglob("*") if path.is_file() and symbols.is_elf(path)]


def test_the_licences_of_what_is_linked_into_its_programs_are_in_it(
    wheels: list[Path], tmp_path: Path
) -> None:
    unpacked(wheels[0], tmp_path)
    texts = {path.stem for path in (tmp_path / "gpushare/licences").iterdir()}
    assert texts == {"musl", "zig"}
    sbom = json.loads(wheels[0].with_name(wheels[0].name + SBOM).read_text())
    parts = {part["name"]: part for part in sbom["components"]}
    assert parts.keys() == wheel.LICENCES.keys()
    for name, place in wheel.LICENCES.items():
        assert (tmp_path / place).is_file(), name
    graphs = (tmp_path / wheel.LICENCES["uplot"]).with_name("uPlot.js").read_text()
    assert f"uPlot (v{parts['uplot']['version']})" in graphs
    assert parts["musl"]["licenses"][0]["expression"] == "MIT"
    zig = Path(str(distribution("ziglang").locate_file("ziglang")))
    used = (zig / "lib/libc/musl/src/internal/version.h").read_text()
    assert f'"{parts["musl"]["version"]}"' in used


def test_offline_the_sdist_gives_the_same_bytes_in_another_folder(
    workspace: Workspace, wheels: list[Path], sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    build = tmp_path / "elsewhere"
    build.mkdir()
    # zig's cache has its libc, compiled from nothing of ours.
    (build / "cache").symlink_to(workspace.cache)
    env = workspace.environment() | {"PYTHONPATH": str(root / "packaging")}
    script = f'umask 077; exec "{sys.executable}" -c "$0" "$@"'
    subprocess.run(
        ["unshare", "--net", "sh", "-c", script, BUILD, root, build, "x86_64"],
        check=True,
        env=env,
        timeout=600,
    )
    made = {path.name: digest(path) for path in (build / "dist").iterdir()}
    assert made == {path.name: digest(path) for path in (sdist, wheels[-1])}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
