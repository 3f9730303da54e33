# SPDX-License-Identifier: Apache-2.0
"""Machines as their distributions leave them: machines/NAME/before, and after the registration.

`python -m tests.unit.engines.machine` writes the folders `after` anew from what the code does now;
read the difference before it is committed. The files are of the distributions' packages and
documentation, without what has no bearing on runtimes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpushare.engines import config_files, find

MACHINES: Final = Path(__file__).parent / "machines"
NAMES: Final = tuple(sorted(path.name for path in MACHINES.iterdir()))
LAUNCHER: Final = Path("/usr/local/lib/gpushare/current/bin/gpushare-runtime")
_ENGINES: Final = {"docker": "docker", "crio": "crio", "podman": "podman"}
TEMPLATES_ONLY: Final = ("k3s", "rke2")  # where no default can be chosen


def engine_of(name: str) -> str:
    """Return the engine that a machine is about."""
    return _ENGINES.get(name.partition("-")[0], "containerd")


def may_be_default(name: str) -> bool:
    """Return whether the runtime can be made the default there."""
    return not name.startswith(TEMPLATES_ONLY)


def make(name: str, root: Path) -> Path:
    """Make the machine beneath `root`."""
    before = MACHINES / name / "before"
    if before.exists():  # a machine with no file yet is a folder that git does not keep
        shutil.copytree(before, root, dirs_exist_ok=True)
    return root


def configure(name: str, root: Path, *, default: bool) -> None:
    """Register the runtime on a machine."""
    place = find(engine_of(name)).locate(root, None)
    for change in config_files.configure(place, LAUNCHER, default=default):
        change.apply()


def unconfigure(name: str, root: Path) -> None:
    """Take the runtime out of a machine."""
    place = find(engine_of(name)).locate(root, None)
    for change in config_files.unconfigure(place):
        change.apply()


def files(root: Path) -> dict[str, str]:
    """Return every file beneath `root` but those kept beside an edited one."""
    return {
        str(path.relative_to(root)): path.read_bytes().decode()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(config_files.SUFFIX)
    }


def write_after(name: str) -> None:
    """Write what registering as the default (where that can be) changes on a machine."""
    with tempfile.TemporaryDirectory() as folder:
        root = make(name, Path(folder))
        before = files(root)
        configure(name, root, default=may_be_default(name))
        shutil.rmtree(MACHINES / name / "after", ignore_errors=True)
        for path, text in files(root).items():
            if before.get(path) != text:
                place = MACHINES / name / "after" / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(text.encode())


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        write_after(chosen)
