# SPDX-License-Identifier: Apache-2.0
"""Debian packages: one for each release, because Python's compiled modules fit one Python only.

The files of `packaging/debian` are control file, maintainer scripts and lintian's overrides.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Final

from . import copyright as licences
from . import manual, wheel
from .artifact import Artifact
from .environment import LicensedPart, PrivateEnvironment
from .workspace import Workspace, run

ARCHITECTURE: Final = "amd64"
MACHINE: Final = "x86_64"
CONFIGURATION: Final = "etc/gpushare/gpushare.yaml"
#: Links to commands; users run the first ones, root and systemd the others.
COMMANDS: Final = {
    "gpushare": "usr/bin",
    "gpushared": "usr/sbin",
    "gpushare-exporter": "usr/sbin",
    "gpushare-node": "usr/sbin",
}
#: Programs that are not in a folder `bin`.
PROGRAMS: Final = frozenset({"gpushare-probe"})
_SCRIPTS: Final = ("postinst", "prerm", "postrm")


@dataclass(frozen=True)
class DebianRelease:
    """A release of Debian, and the version of its Python."""

    number: int
    suite: str
    python: str

    @property
    def next_python(self) -> str:
        """The first version of Python that the package does not fit."""
        major, minor = self.python.split(".")
        return f"{major}.{int(minor) + 1}"


RELEASES: Final = (DebianRelease(12, "bookworm", "3.11"), DebianRelease(13, "trixie", "3.13"))


def make(workspace: Workspace) -> list[Artifact]:
    """Build the packages of all releases."""
    own = wheel.up_to_date(workspace, MACHINE)
    return [make_release(workspace, release, own) for release in RELEASES]


def make_release(workspace: Workspace, release: DebianRelease, own: Path) -> Artifact:
    """Build the package of one release from the wheel `own`."""
    stage = workspace.scratch(f"deb{release.number}")
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    prefix = Path("/usr/lib/gpushare") / workspace.version
    environment = PrivateEnvironment(
        prefix, stage, release.python, Path(f"/usr/bin/python{release.python}")
    )
    parts = environment.fill(workspace, own, MACHINE)
    parts += _static_parts(environment)
    add_links(stage, prefix)
    manual.write_pages(workspace, stage)
    manual.write_completions(stage)
    _copy(workspace.root / "configs/gpushare.yaml", stage / CONFIGURATION)
    version = f"{workspace.version}-1~deb{release.number}"
    _add_documents(workspace, stage, version, parts)
    fix_modes(stage)
    _add_control(workspace, release, stage, version)
    place = workspace.dist / f"gpushare_{version}_{ARCHITECTURE}.deb"
    run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", stage, place],
        cwd=workspace.root,
        env=workspace.environment(),
    )
    return Artifact(place, [licensed.part for licensed in parts])


def _static_parts(environment: PrivateEnvironment) -> list[LicensedPart]:
    texts = environment.modules
    return [
        LicensedPart(part, [(texts / wheel.LICENCES[part.name]).read_text(encoding="utf-8")])
        for part in wheel.STATIC_PARTS
    ]


def add_links(stage: Path, prefix: Path) -> None:
    """Link the commands in `prefix` from the folders on the PATH."""
    for name, folder in COMMANDS.items():
        (stage / folder).mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(prefix / "bin" / name, Path("/") / folder)
        (stage / folder / name).symlink_to(target)


def _add_documents(
    workspace: Workspace, stage: Path, version: str, parts: list[LicensedPart]
) -> None:
    folder = stage / "usr/share/doc/gpushare"
    folder.mkdir(parents=True)
    licences.write(folder / "copyright", workspace.root / "LICENSE", parts)
    _copy(workspace.root / "CHANGELOG.md", folder / "changelog")
    manual.compress(folder / "changelog")
    maintainer = _field(workspace, "Maintainer")
    entry = (
        f"gpushare ({version}) unstable; urgency=medium\n\n"
        "  * Built from upstream's release; see changelog.gz.\n\n"
        f" -- {maintainer}  {formatdate(workspace.epoch)}\n"
    )
    (folder / "changelog.Debian.gz").write_bytes(gzip.compress(entry.encode(), 9, mtime=0))
    overrides = stage / "usr/share/lintian/overrides/gpushare"
    _copy(workspace.root / "packaging/debian/lintian-overrides", overrides)


def _field(workspace: Workspace, name: str) -> str:
    """Return a field of the control file."""
    lines = (workspace.root / "packaging/debian/control").read_text(encoding="utf-8").splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith(f"{name}:"))


def _add_control(workspace: Workspace, release: DebianRelease, stage: Path, version: str) -> None:
    files = [path for path in sorted(stage.rglob("*")) if path.is_file() and not path.is_symlink()]
    folder = stage / "DEBIAN"
    folder.mkdir()
    kib = sum(-(-path.stat().st_size // 1024) for path in files)
    values = {
        "VERSION": version,
        "ARCHITECTURE": ARCHITECTURE,
        "SIZE": str(kib),
        "PREFIX": f"/usr/lib/gpushare/{workspace.version}",
        "PYTHON": release.python,
        "NEXT_PYTHON": release.next_python,
    }
    for name in ("control", *_SCRIPTS):
        text = (workspace.root / "packaging/debian" / name).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755 if name in _SCRIPTS else 0o644)
    (folder / "conffiles").write_text(f"/{CONFIGURATION}\n", encoding="utf-8")
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}"
        f"  {path.relative_to(stage)}\n"
        for path in files
        if path != stage / CONFIGURATION
    ]
    (folder / "md5sums").write_text("".join(sums), encoding="utf-8")
    for path in (folder, folder / "conffiles", folder / "md5sums"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def fix_modes(stage: Path, programs: Collection[str] = PROGRAMS) -> None:
    """Give every file a mode that depends on its kind and name only."""
    stage.chmod(0o755)
    for path in stage.rglob("*"):
        if not path.is_symlink():
            is_program = path.parent.name == "bin" or path.name in programs
            is_executable = path.is_dir() or is_program or path.suffix == ".sh"
            path.chmod(0o755 if is_executable else 0o644)
