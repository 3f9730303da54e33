# SPDX-License-Identifier: Apache-2.0
"""The image for a DaemonSet: the host bundle, and of Debian what a shell needs.

Its entry is `packaging/image/gpushare-image`.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from . import deb, host_bundle, oci_archive, wheel
from .artifact import Artifact, BundledPart
from .debian_root import DebianRoot
from .oci_archive import ImageConfig
from .workspace import Workspace, run

NAME: Final = "localhost/gpushare"
ENTRY: Final = "usr/bin/gpushare-image"
CONTENTS: Final = "share/contents.sha256"
#: The packages of Debian in the image; a scanner finds them in dpkg's database.
DEBIAN_PARTS: Final = {
    "base-files": "GPL-2.0-or-later",
    "base-passwd": "GPL-2.0-only",
    "busybox-static": "GPL-2.0-only",
}
#: Links of a merged /usr, which belong to no package.
_MERGED: Final = {"bin": "usr/bin", "lib": "usr/lib", "sbin": "usr/sbin"}
_FOLDERS: Final = ("dev", "host", "proc", "root", "run", "sys", "tmp", "usr/sbin", "var/tmp")


def make(workspace: Workspace) -> list[Artifact]:
    """Build the image."""
    return [make_from(workspace, wheel.up_to_date(workspace, host_bundle.ARCHITECTURE))]


def make_from(workspace: Workspace, own_wheel: Path) -> Artifact:
    """Build the image from the wheel of gpushare."""
    folder = workspace.scratch("image")
    shutil.rmtree(folder, ignore_errors=True)
    base, own = folder / "base", folder / "own"
    root = DebianRoot.of(workspace)
    bundle = host_bundle.make(workspace, own, own_wheel)
    parts = [root.part(name, licence) for name, licence in DEBIAN_PARTS.items()]
    _lay_out_debian(workspace, root, base, [*parts, *bundle.parts])
    (own / ENTRY).parent.mkdir(parents=True)
    shutil.copyfile(workspace.root / "packaging/image/gpushare-image", own / ENTRY)
    version = own / host_bundle.PREFIX.relative_to("/") / "version"
    version.write_text(f"{workspace.version}\n", encoding="utf-8")
    staged = own / bundle.place.relative_to("/")
    (staged / CONTENTS).write_text(_contents(staged), encoding="utf-8")
    for layer in (base, own):
        deb.fix_modes(layer, host_bundle.PROGRAMS)
    for name in ("tmp", "var/tmp"):
        (base / name).chmod(0o1777)
    place = workspace.dist / f"gpushare-{workspace.version}-amd64.oci.tar"
    config = ImageConfig(
        name=f"{NAME}:{workspace.version}",
        architecture="amd64",
        entrypoint=[f"/{ENTRY}"],
        variables={"PATH": f"{bundle.place}/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        labels={
            "org.opencontainers.image.description": "Share NVIDIA GPUs between containers",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.title": "gpushare",
            "org.opencontainers.image.version": workspace.version,
        },
    )
    oci_archive.write(place, [base, own], config, workspace.epoch)
    return Artifact(place, [*parts, *bundle.parts])


def _lay_out_debian(
    workspace: Workspace, root: DebianRoot, base: Path, parts: list[BundledPart]
) -> None:
    """Create the lowest layer: the files of DEBIAN_PARTS, and dpkg's entries of all `parts`."""
    for name in _FOLDERS:
        (base / name).mkdir(parents=True)
    for name, merged in _MERGED.items():
        (base / merged).mkdir(parents=True, exist_ok=True)
        (base / name).symlink_to(merged)
    for package in DEBIAN_PARTS:
        for path in root.files(package):
            if path.parent == Path("/"):
                continue  # a link of a merged /usr
            target = base / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root.at(path), target, follow_symlinks=False)
    for name in ("group", "passwd"):
        shutil.copyfile(base / f"usr/share/base-passwd/{name}.master", base / "etc" / name)
    listed = run([root.at(Path("/bin/busybox")), "--list"], cwd=workspace.root)
    for applet in listed.split():
        if not (base / "usr/bin" / applet).exists():
            (base / "usr/bin" / applet).symlink_to("busybox")
    status = base / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    named = [part.name for part in parts if part.kind == "deb"]
    stanzas = [root.stanza(name) for name in sorted(named)]
    status.write_text("\n".join(stanzas), encoding="utf-8")


def _contents(folder: Path) -> str:
    """Return a line for each file, as sha256sum(1) reads it."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or path.is_dir():
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{digest}  {path.relative_to(folder)}\n")
    return "".join(lines)
