# SPDX-License-Identifier: Apache-2.0
"""The plugin of kubectl for krew: an archive with one program, and its manifest.

The program is a zip file that Python runs: gpushare.cli.kubectl with the modules that it imports,
and click. It needs Python on the machine, and no compiler and no other package.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
import zipfile
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Final

from .artifact import Artifact, BundledPart
from .environment import REQUIREMENTS, download
from .workspace import PackageError, Workspace

NAME: Final = "kubectl-gpushare"
MANIFEST: Final = Path("packaging/krew/gpushare.yaml")
_PROGRAM: Final = "gpushare.cli.kubectl"
#: Asks gpushared for the names of containers, which no command of the plugin takes.
_LEFT_OUT: Final = ("gpushare.cli.completion",)
#: Read by Python versions that cannot read the modules.
_MAIN: Final = b"""\
import sys

if sys.version_info < (3, 10):
    version = ".".join(str(number) for number in sys.version_info[:3])
    sys.exit("kubectl-gpushare: requires Python 3.10 or newer, and this is " + version)
from gpushare.cli.kubectl import main

main()
"""


def make(workspace: Workspace) -> list[Artifact]:
    """Build the archive, and its manifest beside it."""
    wheel = _click(workspace)
    sources = {"__main__.py": _MAIN, **modules(workspace.root), **_members(wheel)}
    program = b"#!/usr/bin/env python3\n" + zipped(sources, workspace.epoch)
    licence = (workspace.root / "LICENSE").read_bytes()
    place = workspace.dist / f"{NAME}-{workspace.version}.zip"
    place.write_bytes(zipped({NAME: program, "LICENSE": licence}, workspace.epoch))
    text = (workspace.root / MANIFEST).read_text(encoding="utf-8")
    text = text.replace("VERSION", workspace.version).replace("SHA256", _digest(place))
    (workspace.dist / MANIFEST.name).write_text(text, encoding="utf-8")
    version = wheel.name.split("-")[1]
    return [Artifact(place, [BundledPart("click", version, "BSD-3-Clause", sha256=_digest(wheel))])]


def modules(root: Path) -> dict[str, bytes]:
    """Return the modules of gpushare that the program may import, by their paths."""
    finder = ModuleFinder([str(root)], excludes=list(_LEFT_OUT))
    finder.import_hook(_PROGRAM)
    files = [Path(getattr(module, "__file__", "") or "") for module in finder.modules.values()]
    inside = [file for file in files if file.is_relative_to(root / "gpushare")]
    return {str(file.relative_to(root)): file.read_bytes() for file in inside}


def zipped(contents: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a zip archive of files by their names, of which NAME is executable."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(contents.items()):
            member = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o100755 if name == NAME else 0o100644) << 16
            archive.writestr(member, content)
    return packed.getvalue()


def _click(workspace: Workspace) -> Path:
    """Return the wheel of click that the other packages contain too."""
    text = (workspace.root / REQUIREMENTS).read_text(encoding="utf-8")
    match = re.search(r"(?m)^click==\S+(?: \\\n.*)*\n", text)
    if match is None:
        raise PackageError(f"{REQUIREMENTS} has no line for click")
    (wheel,) = download(workspace, match[0], "click")
    return wheel


def _members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if name.endswith(".py") or "LICENSE" in name
        }


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
