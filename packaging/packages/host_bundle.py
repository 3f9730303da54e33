# SPDX-License-Identifier: Apache-2.0
"""The host bundle: gpushare with an interpreter of its own, for the rpm and for the image.

It is one folder, `/usr/lib/gpushare/VERSION`, that works on any x86_64 host at that path. It is the
private environment of the deb, but its Python is in it, in `python/`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import deb, interpreter, wheel
from .artifact import BundledPart
from .debian_root import DebianRoot
from .environment import PrivateEnvironment
from .workspace import Workspace, run

PREFIX: Final = Path("/usr/lib/gpushare")
ARCHITECTURE: Final = "x86_64"
#: Programs that are not in a folder `bin`.
PROGRAMS: Final = deb.PROGRAMS | {interpreter.LOADER[ARCHITECTURE]}


#: The licences that Debian's copyright files name instead of having their text.
_COMMON_LICENCES: Final = ("Apache-2.0", "GPL-2", "GPL-3", "LGPL-2.1")


@dataclass(frozen=True)
class HostBundle:
    """A folder that becomes `place` of a host.

    Attributes:
        stage: the folder that becomes the host's root.
        place: where it is on the host.
        parts: the software of others in it.
    """

    stage: Path
    place: Path
    parts: tuple[BundledPart, ...]


def make(workspace: Workspace, stage: Path, own: Path) -> HostBundle:
    """Create the bundle beneath the folder `stage` from the wheel `own`."""
    root = DebianRoot.of(workspace)
    place = PREFIX / workspace.version
    python = place / "python"
    staged_python = stage / python.relative_to("/")
    interpreter.make(workspace, root, staged_python, python)
    environment = PrivateEnvironment(place, stage, interpreter.VERSION, python / "bin/python3")
    installed = environment.fill(workspace, own, ARCHITECTURE)
    _copy_licences(root, environment.place / "share/licences")
    _compile(workspace, interpreter.argv(root, staged_python), environment)
    parts = [root.part(name, licence) for name, licence in interpreter.LICENCES.items()]
    parts += [*(licensed.part for licensed in installed), *wheel.STATIC_PARTS]
    return HostBundle(stage, place, tuple(parts))


def _copy_licences(root: DebianRoot, folder: Path) -> None:
    """Copy the licences of Debian's sources, and the texts that they refer to.

    Those of Python's modules are in the modules' own metadata.
    """
    folder.mkdir(parents=True)
    for package in interpreter.LICENCES:
        shutil.copyfile(root.licence(package), folder / root.source(package))
    for name in _COMMON_LICENCES:
        shutil.copyfile(root.at(Path("/usr/share/common-licenses") / name), folder / name)


def _compile(
    workspace: Workspace, python: list[str | Path], environment: PrivateEnvironment
) -> None:
    """Compile all modules. Their folder never changes, so Python need not compare them again."""
    words = ["-IB", "-m", "compileall", "-f", "-q", "--invalidation-mode", "unchecked-hash"]
    words += ["-s", str(environment.stage), "-p", "/"]
    folders = [environment.place / "python/lib", environment.modules]
    run([*python, *words, *folders], cwd=environment.stage, env=workspace.environment())
